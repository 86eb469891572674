// Adds to each search result the sentence around the first word that was searched for.
"use strict";

const snippet = (page, anchor, words) => {
  const sections = SectionTexts[page] || [];
  const found = sections.filter(([id]) => !anchor || `#${id}` === anchor);
  for (const [, text] of [...found, ...sections]) {
    const place = words
      .map((word) => text.toLowerCase().indexOf(word))
      .find((position) => position >= 0);
    if (place === undefined) continue;
    const period = text.lastIndexOf(". ", place);
    const sentence = period < 0 ? 0 : period + 2;
    const start = place - sentence < 120 ? sentence : text.indexOf(" ", place - 100) + 1;
    return `${start ? "… " : ""}${text.slice(start, start + 240).trim()} …`;
  }
  return found.length && found[0][1] ? `${found[0][1].slice(0, 240)} …` : "";
};

const addSnippets = (results) => {
  const query = new URLSearchParams(window.location.search).get("q") || "";
  const words = query.toLowerCase().split(/\s+/).filter(Boolean);
  for (const item of results.querySelectorAll("li:not([data-snippet])")) {
    item.dataset.snippet = "yes";
    const [page, anchor] = item.querySelector("a").getAttribute("href").split("#");
    const text = snippet(page.replace(/\.html$/, ""), anchor && `#${anchor}`, words);
    if (!text) continue;
    const paragraph = document.createElement("p");
    paragraph.className = "context";
    paragraph.textContent = text;
    item.append(paragraph);
  }
};

document.addEventListener("DOMContentLoaded", () => {
  const results = document.getElementById("search-results");
  if (!results) return;
  addSnippets(results);
  new MutationObserver(() => addSnippets(results)).observe(results, {
    childList: true,
    subtree: true,
  });
});
