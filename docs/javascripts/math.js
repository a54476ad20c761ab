// Sets the formulas that arithmatex has marked, by the copy of KaTeX in vendor/. Without scripts their source stays.
document.querySelectorAll(".arithmatex").forEach((element) => {
  const source = element.textContent.trim(), displayMode = source.startsWith("\\[");
  katex.render(source.slice(2, -2), element, { displayMode, throwOnError: false });
  if (displayMode || source.length > 40) return;
  // A short formula stays on its line, with the comma after it.
  const next = element.nextSibling, mark = next?.nodeType === Node.TEXT_NODE ? next.data.match(/^[^\s\w(]*/)[0] : "";
  if (mark) next.data = next.data.slice(mark.length);
  element.append(mark);
  element.style.whiteSpace = "nowrap";
});
