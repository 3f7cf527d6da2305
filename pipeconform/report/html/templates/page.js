"use strict";
(() => {
  const form = document.getElementById("filters");
  const find = document.getElementById("find");
  const chosen = (id) => document.getElementById(id).value;

  // The attributes of a row are read once; filtering then changes only the rows whose state changes, in one frame.
  const read = (element, kind) => ({
    element,
    kind,
    chapters: (element.dataset.chapters ?? element.dataset.chapter ?? "").split(" "),
    levels: (element.dataset.levels ?? element.dataset.level ?? "").split(" "),
    statuses: (element.dataset.statuses ?? element.dataset.status ?? "").split(" "),
    schedules: element.dataset.schedules === undefined ? null : element.dataset.schedules.split(" "),
    search: element.dataset.search,
    hidden: false,
  });
  const rows = Array.from(document.querySelectorAll("[data-row]"), (e) => read(e, "row"));
  const groups = Array.from(document.querySelectorAll("[data-group]"), (e) => read(e, "group"));
  const harms = Array.from(document.querySelectorAll("[data-harm]"), (element) => ({
    element,
    groups: groups.filter((one) => element.contains(one.element)),
    hidden: false,
  }));
  // One row per requirement: those of the matrix, and those that are not claimed.
  const requirements = rows.filter((row) => row.element.dataset.of !== undefined);
  const inMatrix = requirements.filter((row) => row.element.closest(".matrix"));
  const blocks = Array.from(document.querySelectorAll("[data-block]"), (element) => ({
    element,
    rows: inMatrix.filter((row) => element.contains(row.element)),
    hidden: false,
  }));
  // The range of columns of each variant, before any is hidden.
  const spans = (table) => {
    let from = 0;
    return Array.from(table.querySelectorAll("[data-variant]"), (element) => {
      const one = { element, from, to: from + element.colSpan };
      from = one.to;
      return one;
    });
  };
  const tables = Array.from(document.querySelectorAll(".matrix"), (element) => ({
    element,
    names: Array.from(element.querySelectorAll("[data-column]"), (th) => th.dataset.column),
    variants: spans(element),
    column: "",
  }));
  const columnsOf = new Map();
  for (const table of tables) {
    for (const row of table.element.querySelectorAll("[data-row]")) columnsOf.set(row, table.names);
  }
  // The counts of a requirement are hidden together with its row.
  for (const row of requirements) row.counts = document.getElementById(row.element.dataset.of);
  // Folded lists are hidden if nothing in them is left, and open while a filter chooses from them.
  const folds = Array.from(document.querySelectorAll("[data-fold]"), (element) => ({
    element,
    rows: requirements.filter((row) => element.contains(row.element) || element.contains(row.counts)),
    lists: element.querySelector("[data-row]") !== null,
    opened: false,
    hidden: false,
  }));

  const nothing = {
    matrix: { element: document.querySelector("#matrix .nothing"), hidden: true },
    failures: { element: document.querySelector("#failures .nothing"), hidden: true },
  };
  const hide = (one, hidden) => {
    if (one.hidden === hidden) return;
    one.hidden = hidden;
    one.element.hidden = hidden;
    if (one.counts) one.counts.hidden = hidden;
  };

  const statusesUnder = (one, schedule) => {
    if (one.schedules !== null) return one.schedules.includes(schedule) ? one.statuses : [];
    const names = columnsOf.get(one.element);
    return one.statuses.filter((_, at) => names[at] === schedule);
  };

  const matches = (one, wanted) => {
    if (wanted.chapter && !one.chapters.includes(wanted.chapter)) return false;
    if (wanted.level && !one.levels.includes(wanted.level)) return false;
    if (!wanted.words.every((word) => one.search.includes(word))) return false;
    const statuses = wanted.schedule ? statusesUnder(one, wanted.schedule) : one.statuses;
    if (statuses.length === 0) return false;
    return wanted.statuses.length === 0 || statuses.some((s) => wanted.statuses.some((w) => s.includes(w)));
  };

  const showColumn = (table, schedule) => {
    if (table.column === schedule) return;
    table.column = schedule;
    // A schedule may have a column in every environment variant; a variant without one is hidden.
    const shown = table.names.flatMap((name, at) => (schedule === "" || name === schedule ? [at] : []));
    table.element.classList.toggle("one-column", schedule !== "");
    for (const variant of table.variants) {
      const left = shown.filter((at) => variant.from <= at && at < variant.to).length;
      variant.element.hidden = left === 0;
      variant.element.colSpan = Math.max(left, 1);
      variant.element.style.setProperty("--span", String(left));
    }
    table.style ??= document.head.appendChild(document.createElement("style"));
    table.element.id ||= `matrix-${tables.indexOf(table)}`;
    table.style.textContent =
      schedule === ""
        ? ""
        : `#${table.element.id} tr:not(.variants) > :nth-child(n+2)${shown.map((at) => `:not(:nth-child(${at + 2}))`).join("")} { display: none }`;
    table.measure?.();
  };

  let filtered = false;
  const apply = () => {
    const wanted = {
      words: find.value.toLowerCase().split(/\s+/).filter(Boolean),
      chapter: chosen("chapter"),
      schedule: chosen("schedule"),
      level: chosen("level"),
      statuses: Array.from(form.querySelectorAll("[name=status]:checked"), (box) => box.value),
    };
    for (const one of rows) hide(one, !matches(one, wanted));
    for (const one of groups) hide(one, !matches(one, wanted));
    for (const harm of harms) hide(harm, harm.groups.every((one) => one.hidden));
    for (const block of blocks) hide(block, block.rows.every((row) => row.hidden));
    for (const table of tables) showColumn(table, wanted.schedule);
    const seen = requirements.filter((row) => !row.hidden).length;
    const told = groups.filter((group) => !group.hidden).length;
    hide(nothing.matrix, seen > 0);
    hide(nothing.failures, told > 0 || groups.length === 0);
    const all = seen === requirements.length && told === groups.length;
    if (filtered === all) {
      filtered = !all;
      foldCalm();
    }
    for (const fold of folds) {
      hide(fold, fold.rows.every((row) => row.hidden));
      if (!fold.lists || fold.opened === !all) continue;
      fold.element.open = fold.opened = !all;
    }
    document.getElementById("shown").textContent = all
      ? ""
      : `${seen} of ${requirements.length} requirements, ${told} of ${groups.length} causes`;
  };

  // Laying out thousands of rows takes longer than typing a letter, so filters then wait for a pause in typing.
  const pause = rows.length > 1000 ? 150 : 0;
  let asked = 0;
  const later = () => {
    clearTimeout(asked);
    asked = setTimeout(() => requestAnimationFrame(apply), pause);
  };
  form.addEventListener("input", later);
  form.addEventListener("reset", () => setTimeout(later));
  form.addEventListener("submit", (event) => event.preventDefault());
  form.hidden = false;

  // On a narrow screen the filters are folded; elsewhere they stay in sight, and links stop below them.
  const wide = matchMedia("(min-width: 46.01rem)");
  const bar = document.getElementById("filters-fold");
  const fit = () => (bar.open = wide.matches);
  wide.addEventListener("change", fit);
  fit();
  const room = () =>
    document.documentElement.style.setProperty(
      "--bar",
      getComputedStyle(form).position === "sticky" ? `${form.offsetHeight}px` : "0px",
    );
  new ResizeObserver(room).observe(form);
  room();

  // The wrapper of a matrix scrolls sideways, so its headings cannot stick to the window. A copy of them can, outside of it.
  const copied = (table) => {
    const scroller = table.element.closest(".scroll");
    const original = table.element.tHead;
    const bar = document.createElement("div");
    bar.className = "heads";
    bar.setAttribute("aria-hidden", "true");
    const copy = bar.appendChild(table.element.cloneNode(false));
    copy.removeAttribute("id");
    copy.appendChild(original.cloneNode(true));
    const pairs = Array.from(original.querySelectorAll("th, td"), (cell, at) => ({
      cell,
      copy: copy.querySelectorAll("th, td")[at],
    }));
    const follow = () => (bar.scrollLeft = scroller.scrollLeft);
    let before = "";
    // All is measured before anything is changed, and nothing is changed that is as it was: a page is laid out once.
    return () => {
      const sizes = pairs.map(({ cell }) => [cell.getBoundingClientRect().width, cell.colSpan]);
      const [width, height] = [table.element.offsetWidth, original.offsetHeight];
      const now = JSON.stringify([sizes, width, height]);
      if (now === before) return;
      before = now;
      pairs.forEach(({ copy: one }, at) => {
        const [wide, span] = sizes[at];
        one.hidden = wide === 0;
        one.colSpan = span;
        one.style.width = one.style.minWidth = one.style.maxWidth = `${wide}px`;
      });
      copy.style.width = `${width}px`;
      scroller.parentElement.style.setProperty("--heads", `${height}px`);
      if (bar.parentElement === null) {
        scroller.parentElement.append(bar);
        scroller.addEventListener("scroll", follow, { passive: true });
      }
      follow();
    };
  };
  for (const table of tables) {
    table.measure = copied(table);
    new ResizeObserver(table.measure).observe(table.element);
  }

  // On a narrow screen, chapters of the matrix in which there is nothing to look into are folded.
  const calm = Array.from(document.querySelectorAll("[data-calm]"), (element) => {
    const place = element.querySelector(".chapter span");
    const plain = place.textContent;
    const button = document.createElement("button");
    button.type = "button";
    button.className = "fold";
    const number = element.querySelectorAll("[data-row]").length;
    button.textContent = `${plain} (${number})`;
    const fold = (folded) => {
      element.classList.toggle("folded", folded);
      button.setAttribute("aria-expanded", String(!folded));
    };
    button.addEventListener("click", () => fold(!element.classList.contains("folded")));
    return {
      fold,
      // What a reader opened or closed stays so until the screen or a filter changes.
      narrow: (narrow) => place.replaceChildren(narrow ? button : plain),
    };
  });
  const foldCalm = () => {
    for (const one of calm) {
      one.narrow(!wide.matches);
      one.fold(!wide.matches && !filtered);
    }
  };
  wide.addEventListener("change", foldCalm);
  foldCalm();

  // A link to an element inside closed details opens them.
  const reveal = () => {
    const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
    if (target === null) return;
    if (target.closest("[hidden]") !== null) {
      form.reset();
      apply();
    }
    for (let at = target; at !== null; at = at.parentElement) {
      if (at.tagName === "DETAILS") at.open = true;
    }
    (target.closest(".other") ?? target.closest(".violation") ?? target).scrollIntoView();
    // What is above is laid out only now, so the first jump may have missed.
    requestAnimationFrame(() =>
      (target.closest(".other") ?? target.closest(".violation") ?? target).scrollIntoView(),
    );
  };
  addEventListener("hashchange", reveal);
  if (location.hash) reveal();

  const say = (words) => {
    document.getElementById("said").textContent = words;
  };
  const copy = async (text, from) => {
    try {
      await navigator.clipboard.writeText(text);
      return true;
    } catch {
      const range = document.createRange();
      range.selectNodeContents(from);
      const selection = getSelection();
      selection.removeAllRanges();
      selection.addRange(range);
      return document.execCommand("copy");
    }
  };
  for (const button of document.querySelectorAll(".copy")) button.hidden = false;
  document.addEventListener("click", async (event) => {
    const button = event.target.closest(".copy");
    if (button === null) return;
    const code = button.parentElement.querySelector("code");
    const done = await copy(code.textContent, code);
    button.textContent = done ? "Copied" : "Press Ctrl+C";
    say(done ? "Copied the command" : "Selected the command");
    setTimeout(() => (button.textContent = "Copy"), 2000);
  });

  // Closed details are not printed, so they are opened during printing.
  let folded = [];
  addEventListener("beforeprint", () => {
    folded = Array.from(document.querySelectorAll("details:not([open])"));
    for (const one of folded) one.open = true;
  });
  addEventListener("afterprint", () => {
    for (const one of folded) one.open = false;
  });
})();
