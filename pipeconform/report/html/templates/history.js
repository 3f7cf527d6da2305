"use strict";
(() => {
  // A link to a requirement opens its violations.
  const reveal = () => {
    const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
    if (target === null || target.tagName !== "DETAILS") return;
    target.open = true;
    target.scrollIntoView();
  };
  addEventListener("hashchange", reveal);
  if (location.hash) reveal();
})();
