// A page whose title or heading has the words comes first, then pages whose text has them as written.
// The result leads to the heading or section. The changelog, which has most words, comes last.
"use strict";

const countOf = (text, words) => text.toLowerCase().split(words).length - 1;

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
    const words = new URLSearchParams(window.location.search).get("q").trim().toLowerCase();
    const has = (text) => text.toLowerCase().includes(words);
    if (page === "changelog") return score - 100;
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
    const counts = (SectionTexts[page] || []).map(([id, text]) => [countOf(text, words), id]);
    const total = counts.reduce((sum, [count]) => sum + count, 0);
    if (!total) return score;
    const [, section] = counts.reduce((most, next) => (next[0] > most[0] ? next : most));
    result[2] = `#${section}`;
    return score + 5 + Math.min(total, 15);
  },
};
