"use strict";
(() => {
  const form = document.getElementById("filters");
  const names = ["implementation", "release", "part", "standing"];
  const selects = new Map(names.map((name) => [name, document.getElementById(name)]));
  const rows = Array.from(document.querySelectorAll("tr[data-implementation]"), (element) => ({
    element,
    boxes: new Map(Array.from(element.querySelectorAll("[data-part]"), (td) => [td.dataset.part, td.dataset.standing])),
  }));
  const groups = Array.from(document.querySelectorAll("[data-group]"));
  const columns = document.head.appendChild(document.createElement("style"));

  const matches = ({ element, boxes }, wanted) => {
    if (wanted.implementation && element.dataset.implementation !== wanted.implementation) return false;
    if (wanted.release && element.dataset.release !== wanted.release) return false;
    const standing = wanted.part ? boxes.get(wanted.part) : element.dataset.standing;
    if (wanted.part && !standing) return false;
    if (!wanted.standing) return true;
    // Without a part, any chapter may be blocked or not claimed; the verdict says only whether all is met.
    return wanted.part || ["met", "violated", "unjudged"].includes(wanted.standing)
      ? standing === wanted.standing
      : [...boxes].some(([part, one]) => part.startsWith("chapter-") && one === wanted.standing);
  };

  const apply = () => {
    const wanted = Object.fromEntries(names.map((name) => [name, selects.get(name).value]));
    for (const row of rows) row.element.hidden = !matches(row, wanted);
    for (const group of groups) group.hidden = group.querySelector("tr[data-implementation]:not([hidden])") === null;
    columns.textContent = wanted.part
      ? `[data-part] { display: none } [data-part="${wanted.part}"] { display: table-cell !important }`
      : "";
    const seen = rows.filter((row) => !row.element.hidden).length;
    document.getElementById("nothing").hidden = seen > 0;
    document.getElementById("shown").textContent = seen === rows.length ? "" : `${seen} of ${rows.length} results`;
    const chosen = new URLSearchParams(Object.entries(wanted).filter(([, value]) => value));
    history.replaceState(null, "", chosen.size > 0 ? `#${chosen}` : location.pathname + location.search);
  };

  // The address holds the filters, so a filtered index can be linked.
  for (const [name, value] of new URLSearchParams(location.hash.slice(1))) {
    const select = selects.get(name);
    if (select && Array.from(select.options).some((option) => option.value === value)) select.value = value;
  }
  form.addEventListener("input", apply);
  form.addEventListener("reset", () => setTimeout(apply));
  form.addEventListener("submit", (event) => event.preventDefault());
  form.hidden = false;
  apply();
})();
