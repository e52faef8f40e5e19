for (const table of document.querySelectorAll("table.sortable")) {
  const heads = [...table.tHead.rows[0].cells], body = table.tBodies[0];
  heads.forEach((head, column) => {
    const button = document.createElement("button");
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const down = head.getAttribute("aria-sort") !== "descending";
      heads.forEach((other) => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      const key = (row) => row.cells[column].textContent.trim();
      const order = (a, b) => {
        const x = parseFloat(key(a)), y = parseFloat(key(b));
        if (isNaN(x) !== isNaN(y)) return isNaN(x) ? 1 : -1;
        const value = isNaN(x) ? key(b).localeCompare(key(a)) : y - x;
        return down ? value : -value;
      };
      body.append(...[...body.rows].sort(order));
    });
  });
}
