// Of pages that a search finds equally good, the earlier chapter comes first; what is no chapter comes
// after them. The numbers are Sphinx's own (searchtools.js); scores are whole, so less than 1 only
// decides between equals, which Sphinx would order by title: "15. …" before "2. …".
var Scorer = {
  score: ([docname, title, anchor, descr, score, filename]) => {
    const chapter = /^notebooks\/(\d+)_/.exec(docname);
    return score - (chapter ? Number(chapter[1]) : 99) / 100;
  },
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};
