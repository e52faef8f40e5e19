"""What the paper proves, computable: one file per subject, exact where counting is possible.

* :mod:`~tkpr.theory.discriminancy`: Thm. 1, TKPR against P@K and R@K.
* :mod:`~tkpr.theory.bounds`: Prop. 3 and Lem. 5 (the ranking loss), Thm. 2 (AP@K).
* :mod:`~tkpr.theory.bayes`: Prop. 4, Cor. 2, Prop. 14, the optimal rankings.
* :mod:`~tkpr.theory.consistency`: Thm. 3 and Cor. 3, what minimises the surrogates.
* :mod:`~tkpr.theory.generalisation`: Prop. 5 to 10, Thm. 4, Tab. 3, Lipschitz constants.

Statements are numbered as LaTeX numbers them: propositions, theorems, corollaries and lemmas each
have their own counter, which continues through the appendix; a restated one keeps its number. Prop.
1 is the one on P@K and R@K in Sec. 3, Prop. 14 the one of App. A; Cor. 1 is the one on ties, Cor. 3
the one that names the square, exponential and logistic losses.
"""
