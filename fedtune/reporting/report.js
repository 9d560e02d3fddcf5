"use strict";
const report = (() => { // what a page shows; a live page shows it again and again
  const PAPER = 680; // px between the margins of a printed page
  const HALF = 370; // px of a printed figure of one panel, of which two share a page
  const CONFIG = { // nothing leaves the page: by itself Plotly has a button that sends a figure to a server of its maker
    responsive: true, displaylogo: false, showSendToCloud: false, plotlyServerURL: "",
    modeBarButtonsToRemove: ["sendChartToCloud", "select2d", "lasso2d"],
  };
  const STEP = 200; // rows of a table that are shown at once

  // Plotly, compressed in the page: the policy allows a script of this text, and of no other
  const unpacked = (text) => new Response(new Blob([Uint8Array.from(atob(text), (c) => c.charCodeAt(0))]).stream()
    .pipeThrough(new DecompressionStream("deflate"))).text();

  const inside = document.getElementById("plotly"); // a live page fetches it, and tells when it has it
  const ready = inside ? unpacked(inside.textContent).then((text) => {
    const script = document.createElement("script");
    script.textContent = text;
    document.head.append(script);
  }) : new Promise((done) => document.addEventListener("plotly", done, { once: true }));

  // figures: drawn when they come near
  const specs = new Map(); // of those that are drawn: their text and what it holds

  function lessRoom(data, layout) { // a phone's width: narrow margins, small titles of axes, no scale of colours
    layout.margin = { ...layout.margin, l: 45, r: 8 };
    for (const name of Object.keys(layout)) {
      if (/^[xy]axis/.test(name) && layout[name].title) layout[name].title.font = { size: 11 };
      if (/^xaxis/.test(name) && layout[name].ticktext) { // names, which would lie on one another
        Object.assign(layout[name], { tickangle: -50, automargin: true, ticklabeloverflow: "allow" });
      }
    }
    for (const trace of data) if (trace.marker) trace.marker.showscale = false;
  }

  function draw(box) {
    if (specs.has(box)) return;
    const text = box.nextElementSibling.textContent;
    specs.set(box, { text, ...JSON.parse(text) });
    paint(box, Plotly.newPlot);
  }

  function paint(box, how) {
    const { data, layout } = structuredClone(specs.get(box));
    const narrow = box.clientWidth < 560;
    const asked = { ...layout, autosize: true, uirevision: "same" }; // a zoom stays where a figure is updated
    if (narrow) lessRoom(data, asked);
    box.style.minHeight = asked.height + "px";
    how(box, data, asked, { ...CONFIG, displayModeBar: narrow ? false : "hover" });
  }

  const near = new IntersectionObserver((entries) => {
    for (const entry of entries) if (entry.isIntersecting) ready.then(() => draw(entry.target));
  }, { rootMargin: "100% 0px" });
  const boxes = () => [...document.querySelectorAll(".plot")];

  document.addEventListener("toggle", ({ target }) => { // the page may have another width by now
    for (const box of target.querySelectorAll(".plot")) if (specs.has(box)) Plotly.Plots.resize(box);
  }, true);

  // on paper every figure of a search that is not folded away, at the paper's width, two on a page
  let folded = [];
  window.addEventListener("beforeprint", () => {
    folded = [...document.querySelectorAll("details.tab:not([open])")];
    for (const tab of folded) tab.open = true;
    if (!window.Plotly) return; // not unpacked yet
    for (const box of boxes().filter((b) => !b.closest("details:not([open])"))) {
      draw(box); // by itself: a figure that never was of its own width cannot go back to it
      const { layout } = specs.get(box), { height } = layout;
      Plotly.relayout(box, { width: PAPER, height: height < 1.6 * HALF ? Math.min(height, HALF) : height, autosize: false });
    }
  });
  window.addEventListener("afterprint", () => {
    for (const tab of folded) tab.open = false;
    for (const [box, { layout }] of specs) Plotly.relayout(box, { width: null, height: layout.height, autosize: true });
  });

  // tables of trials: rows come as JSON; a click on a heading sorts, twice the other way; what is missing stands last
  function written(value, digits) {
    if (value === null) return "";
    if (typeof value !== "number") return String(value);
    if (digits !== null) return value.toFixed(digits);
    return Number.isInteger(value) ? String(value) : String(Number(value.toPrecision(4)));
  }

  function compared(a, b, down) {
    if (a === null || b === null) return (a === null) - (b === null);
    const order = typeof a === "number" && typeof b === "number" ? a - b
      : String(a).localeCompare(String(b), undefined, { numeric: true });
    return down ? -order : order;
  }

  const states = new WeakMap(); // of tables: what they are sorted by, and how many rows they show

  function table(root, before) { // before: the same table, which this one replaces
    const { columns, rows, best, sort, rising, links, picks } = JSON.parse(root.querySelector("script").textContent);
    const [text, status, count, more] = ["[name=text]", "[name=status]", ".count", ".more"].map((q) => root.querySelector(q));
    const head = root.querySelector("thead").appendChild(document.createElement("tr"));
    const body = root.querySelector("tbody");
    const statusAt = columns.findIndex((c) => c.name === "status");
    const things = root.dataset.things;
    const lines = rows.map((row, at) => ({
      row, link: links?.[at], cells: row.map((v, i) => written(v, columns[i].digits)),
    }));
    for (const line of lines) line.text = line.cells.join("\n").toLowerCase();
    const was = before && states.get(before);
    const at = columns.findIndex((c) => c.name === was?.by);
    const picked = was?.picked ?? new Set(); // rows' names
    let by = at < 0 ? sort : at, down = at < 0 ? !rising : was.down, limit = was?.limit ?? STEP;

    if (picks) head.append(document.createElement("th"));
    const headings = columns.map((column, i) => {
      const th = head.appendChild(document.createElement("th"));
      th.scope = "col";
      if (column.numeric) th.className = "n";
      const button = th.appendChild(document.createElement("button"));
      button.type = "button";
      button.textContent = column.name;
      button.addEventListener("click", () => {
        down = by === i ? !down : column.numeric;
        by = i;
        anew();
      });
      return th;
    });
    for (const s of new Set(rows.map((row) => row[statusAt]))) status.append(new Option(s, s));
    if (was) {
      text.value = was.text.value;
      status.value = was.status.value;
      if (status.selectedIndex < 0) status.value = "";
    }

    function show() {
      states.set(root, { by: columns[by].name, down, limit, text, status, picked });
      headings.forEach((th, i) => {
        if (i === by) th.setAttribute("aria-sort", down ? "descending" : "ascending");
        else th.removeAttribute("aria-sort");
      });
      const wanted = text.value.trim().toLowerCase();
      const found = lines.filter((l) => picked.has(l.row[0])
        || l.text.includes(wanted) && (!status.value || l.row[statusAt] === status.value));
      found.sort((a, b) => compared(a.row[by], b.row[by], down));
      const page = found.slice(0, limit);
      body.replaceChildren(...page.map((line) => {
        const tr = document.createElement("tr");
        if (line.row[0] === best) tr.className = "best";
        if (picks) pick(tr, line.row[0], picked);
        line.cells.forEach((cell, i) => {
          const td = tr.appendChild(document.createElement("td"));
          if (i === 0 && line.link) td.append(Object.assign(document.createElement("a"), { href: line.link, textContent: cell }));
          else td.append(cell);
          td.className = columns[i].numeric ? "n" : columns[i].name === "reason" ? "wide" : "";
        });
        return tr;
      }));
      const part = page.length < found.length ? `, the first ${page.length} shown` : "";
      count.textContent = `${found.length} of ${rows.length} ${things}${part}`;
      more.hidden = page.length === found.length;
    }
    function anew() { // few rows again: thousands take a second to lay out
      limit = STEP;
      show();
    }
    text.addEventListener("input", anew);
    status.addEventListener("change", anew);
    more.addEventListener("click", () => {
      limit = limit === STEP ? 10 * STEP : Infinity;
      show();
    });
    show();
  }

  function pick(tr, name, picked) { // a box that chooses the row; what is chosen stays in sight
    const td = tr.appendChild(document.createElement("td"));
    td.className = "pick";
    const box = td.appendChild(document.createElement("input"));
    Object.assign(box, { type: "checkbox", name: "run", value: name, checked: picked.has(name), ariaLabel: `choose ${name}` });
    box.addEventListener("change", () => picked[box.checked ? "add" : "delete"](name));
  }

  function copied(button) {
    const said = button.textContent;
    button.hidden = false;
    button.addEventListener("click", async () => {
      const source = button.parentElement.querySelector("pre");
      try {
        await navigator.clipboard.writeText(source.textContent);
        button.textContent = "copied";
      } catch {
        getSelection().selectAllChildren(source);
        button.textContent = "selected: press Ctrl-C";
      }
      setTimeout(() => { button.textContent = said; }, 3000);
    });
  }

  // what is in this element now; earlier: of tables those that they replace
  function show(root, earlier = new Map()) {
    root.querySelectorAll(".plot").forEach((box) => near.observe(box));
    root.querySelectorAll(".trials-box").forEach((box) => states.has(box) || table(box, earlier.get(box)));
    root.querySelectorAll(".copy button").forEach(copied);
  }

  // another content for this element, which people may be reading: what is open, sorted, filtered or zoomed stays so
  function replace(root, next) {
    const both = (query, name, then) => {
      const old = new Map([...root.querySelectorAll(query)].map((e) => [name(e), e]));
      for (const e of next.querySelectorAll(query)) if (old.has(name(e))) then(old.get(name(e)), e);
    };
    const kept = [];
    both("details", (e) => e.dataset.key ?? e.querySelector("summary").textContent, (old, e) => { e.open = old.open; });
    both(".plot", (e) => e.dataset.key, (old, box) => {
      if (!specs.has(old)) return;
      const text = box.nextElementSibling.textContent;
      box.replaceWith(old); // by the figure that is drawn
      if (specs.get(old).text !== text) kept.push([old, text]);
    });
    const earlier = new Map();
    both(".trials-box", (e) => e.dataset.key, (old, e) => {
      if (old.querySelector("script").textContent === e.querySelector("script").textContent) e.replaceWith(old);
      else earlier.set(e, old);
    });
    const focused = root.contains(document.activeElement) && document.activeElement.name
      ? [document.activeElement.closest(".trials-box")?.dataset.key, document.activeElement.name] : null;
    root.replaceChildren(...next.childNodes);
    show(root, earlier);
    for (const [box, text] of kept) {
      specs.set(box, { text, ...JSON.parse(text) });
      paint(box, Plotly.react);
    }
    if (focused) {
      const box = [...root.querySelectorAll(".trials-box")].find((e) => e.dataset.key === focused[0]);
      box?.querySelector(`[name=${CSS.escape(focused[1])}]`)?.focus();
    }
    for (const box of specs.keys()) if (!box.isConnected) specs.delete(box);
  }

  return { show, replace };
})();
report.show(document);
