// Sets the formulas that arithmatex has marked, by the copy of KaTeX in vendor/. Without scripts their source stays.
document.querySelectorAll(".arithmatex").forEach((element) => {
  const source = element.textContent.trim();
  katex.render(source.slice(2, -2), element, { displayMode: source.startsWith("\\["), throwOnError: false });
});
