/* What a screen reader and a keyboard need, and Material for MkDocs leaves out. */
const SCROLLING = "pre > code:not([tabindex]), .md-typeset__scrollwrap:not([tabindex])";

function name() {
  document.querySelector(".md-search")?.setAttribute("aria-label", "Search");
  document.querySelectorAll("nav.md-code__nav").forEach((bar, place) => {
    if (!bar.ariaLabel) bar.ariaLabel = `Code ${place + 1}`;
  });
  for (const part of document.querySelectorAll(SCROLLING)) {
    part.tabIndex = 0; // so that arrow keys scroll it
  }
}
document.querySelectorAll("[data-md-component=toc] nav").forEach((part, place) => {
  part.ariaLabel = `${part.ariaLabel?.trim()}, part ${place + 1}`; // two modules may share a name
});
document.querySelectorAll("nav.md-nav[aria-labelledby]").forEach((part) => {
  part.removeAttribute("aria-labelledby"); // of a section with a page of its own it names an icon
  part.ariaLabel = part.querySelector(".md-nav__title").textContent.trim();
});
name();
new MutationObserver(name).observe(document.body, {childList: true, subtree: true});
