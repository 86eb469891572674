/* A page whose title or heading has the word comes first, and the result leads to the heading. */
var Scorer = {
  title: 60,
  partialTitle: 30,
  term: 5,
  partialTerm: 2,
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  score: (result) => {
    const [page, title, anchor, , score, , kind] = result;
    const word = new URLSearchParams(window.location.search).get("q").trim().toLowerCase();
    const has = (text) => text.toLowerCase().includes(word);
    if (kind === "title") return score + 100;
    if (kind !== "text") return score;
    if (has(title)) return score + 90;
    const file = Search._index.docnames.indexOf(page);
    for (const [heading, places] of Object.entries(Search._index.alltitles)) {
      const place = has(heading) && places.find(([found, id]) => found === file && id !== null);
      if (!place) continue;
      result[1] = `${title} > ${heading}`;
      result[2] = `#${place[1]}`;
      return score + 30;
    }
    return score;
  },
};
