"""The 81 concepts of NUS-WIDE: their names in the official order and in that of its lists."""

CONCEPTS = (  # noqa: SIM905 (a list would be one name per line)
    "airport animal beach bear birds boats book bridge buildings cars castle cat cityscape "
    "clouds computer coral cow dancing dog earthquake elk fire fish flags flowers food fox "
    "frost garden glacier grass harbor horses house lake leaf map military moon mountain "
    "nighttime ocean person plane plants police protest railroad rainbow reflection road rocks "
    "running sand sign sky snow soccer sports statue street sun sunset surf swimmers tattoo "
    "temple tiger tower town toy train tree valley vehicle water waterfall wedding whales "
    "window zebra"
).split()
"""The concepts in the order of the official ``Concepts81.txt``: the columns of every version."""

LIST_ORDER = (  # noqa: SIM905 (a list would be one name per line)
    "beach horses animal person book statue train cat police buildings tower cars snow coral "
    "vehicle waterfall food soccer window valley railroad plane mountain plants bridge grass "
    "castle fish earthquake lake sun clouds dog military nighttime cityscape wedding boats elk "
    "sports frost flowers computer bear tiger surf tattoo leaf ocean glacier water sunset map "
    "zebra sand house dancing rocks rainbow tree whales garden reflection airport fox cow birds "
    "harbor temple toy sky town fire road sign flags protest moon swimmers street running"
).split()
"""What the indices 0 to 80 mean in the list files of the 119,103 / 50,720 version."""
