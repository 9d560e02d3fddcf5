"use strict";
(() => {
  const PAPER = 680; // px between the margins of a printed page
  const HALF = 370; // px of a printed figure of one panel, of which two share a page
  const CONFIG = { // nothing leaves the page: by itself Plotly has a button that sends a figure to a server of its maker
    responsive: true, displaylogo: false, showSendToCloud: false, plotlyServerURL: "",
    modeBarButtonsToRemove: ["sendChartToCloud", "select2d", "lasso2d"],
  };
  const STEP = 200; // rows of a table that are shown at once

  // Plotly, compressed in the page: the policy allows a script of this text, and of no other
  async function unpacked(text) {
    const bytes = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
    if (!window.DecompressionStream) return new TextDecoder().decode(inflated(bytes.subarray(2))); // browsers before 2023
    return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"))).text();
  }

  // DEFLATE (RFC 1951): blocks of Huffman codes for bytes and for copies of what went before
  function inflated(bytes) {
    let at = 0, out = new Uint8Array(1 << 23), size = 0;
    const bit = () => (bytes[at >> 3] >> (at++ & 7)) & 1;
    const bits = (n) => { let v = 0; for (let i = 0; i < n; i++) v |= bit() << i; return v; };
    const put = (byte) => {
      if (size === out.length) { const more = new Uint8Array(2 * size); more.set(out); out = more; }
      out[size++] = byte;
    };
    function codes(lengths) { // how many codes there are of each length, and their symbols in the order of codes
      const counts = new Uint16Array(16), starts = new Uint16Array(16), symbols = new Uint16Array(lengths.length);
      for (const n of lengths) counts[n]++;
      counts[0] = 0;
      for (let n = 1; n < 16; n++) starts[n] = starts[n - 1] + counts[n - 1];
      lengths.forEach((n, symbol) => { if (n) symbols[starts[n]++] = symbol; });
      return { counts, symbols };
    }
    function symbol({ counts, symbols }) {
      let code = 0, first = 0, index = 0;
      for (let n = 1; n < 16; n++) {
        code |= bit();
        if (code - first < counts[n]) return symbols[index + code - first];
        index += counts[n];
        first = (first + counts[n]) << 1;
        code <<= 1;
      }
      throw new Error("damaged");
    }
    const series = (count, step, start) => { // bases and extra bits of lengths (step 4) or distances (step 2)
      const bases = [], extras = [];
      for (let i = 0, base = start; i < count; i++) {
        const extra = Math.max(0, Math.floor(i / step) - 1);
        bases.push(base); extras.push(extra); base += 1 << extra;
      }
      return { bases, extras };
    };
    const far = series(30, 2, 1), long = series(28, 4, 3);
    long.bases.push(258); long.extras.push(0);
    const fixed = [
      codes(Array.from({ length: 288 }, (_, i) => (i < 144 ? 8 : i < 256 ? 9 : i < 280 ? 7 : 8))), codes(Array(30).fill(5)),
    ];
    const ORDER = [16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1, 15];
    function dynamic() {
      const literals = bits(5) + 257, distances = bits(5) + 1, count = bits(4) + 4, first = Array(19).fill(0);
      for (let i = 0; i < count; i++) first[ORDER[i]] = bits(3);
      const of = codes(first), lengths = [];
      while (lengths.length < literals + distances) {
        const s = symbol(of);
        if (s < 16) { lengths.push(s); continue; }
        const [value, times] = s === 16 ? [lengths.at(-1), 3 + bits(2)] : [0, s === 17 ? 3 + bits(3) : 11 + bits(7)];
        for (let i = 0; i < times; i++) lengths.push(value);
      }
      return [codes(lengths.slice(0, literals)), codes(lengths.slice(literals))];
    }
    for (let last = 0; !last;) {
      last = bit();
      const kind = bits(2);
      if (kind === 0) { // bytes as they are
        at = (at + 7) & ~7;
        const n = bits(16); bits(16);
        for (let i = 0; i < n; i++) put(bits(8));
        continue;
      }
      const [literal, distance] = kind === 1 ? fixed : dynamic();
      for (let s; (s = symbol(literal)) !== 256;) {
        if (s < 256) { put(s); continue; }
        const n = long.bases[s - 257] + bits(long.extras[s - 257]), d = symbol(distance);
        const back = far.bases[d] + bits(far.extras[d]);
        for (let i = 0; i < n; i++) put(out[size - back]);
      }
    }
    return out.subarray(0, size);
  }

  const ready = unpacked(document.getElementById("plotly").textContent).then((text) => {
    const script = document.createElement("script");
    script.textContent = text;
    document.head.append(script);
  });

  // figures: drawn when they come near
  const specs = new Map(); // of those that are drawn

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

  // a dark page: the figures' own template in dark colours; on paper they are light
  const dark = matchMedia("(prefers-color-scheme: dark)");
  function coloured({ template, plot_bgcolor = null, paper_bgcolor = null }, isDark) {
    if (!isDark || !template) return { template, plot_bgcolor, paper_bgcolor };
    const changed = structuredClone(template), page = "#16181c";
    Object.assign(changed.layout.font ??= {}, { color: "#e4e4e4" });
    Object.assign(changed.layout.hoverlabel ??= {}, { bgcolor: "#2a2d33" });
    for (const axis of ["xaxis", "yaxis"]) Object.assign(changed.layout[axis] ??= {}, { gridcolor: "#3a3d44", linecolor: "#8a8d94" });
    return { template: changed, plot_bgcolor: page, paper_bgcolor: page };
  }
  dark.addEventListener("change", () => {
    for (const [box, { layout }] of specs) Plotly.relayout(box, coloured(layout, dark.matches));
  });

  function draw(box) {
    if (specs.has(box)) return;
    specs.set(box, JSON.parse(box.nextElementSibling.textContent));
    const { data, layout } = structuredClone(specs.get(box));
    const narrow = box.clientWidth < 560;
    const asked = { ...layout, autosize: true, ...coloured(layout, dark.matches) };
    if (narrow) lessRoom(data, asked);
    box.style.minHeight = asked.height + "px";
    Plotly.newPlot(box, data, asked, { ...CONFIG, displayModeBar: narrow ? false : "hover" });
  }

  const near = new IntersectionObserver((entries) => {
    for (const entry of entries) if (entry.isIntersecting) ready.then(() => draw(entry.target));
  }, { rootMargin: "100% 0px" });
  const boxes = [...document.querySelectorAll(".plot")];
  boxes.forEach((box) => near.observe(box));

  // figures in tabs: without scripts, and on paper, they stand under one another
  for (const root of document.querySelectorAll(".tabs")) {
    const panels = [...root.querySelectorAll("section")];
    const list = document.createElement("div");
    list.setAttribute("role", "tablist");
    const tabs = panels.map((panel, i) => {
      const tab = list.appendChild(document.createElement("button"));
      Object.assign(tab, { type: "button", textContent: panel.dataset.tab, id: `tab-${crypto.getRandomValues(new Uint32Array(1))[0]}` });
      tab.setAttribute("role", "tab");
      panel.setAttribute("role", "tabpanel");
      panel.setAttribute("aria-labelledby", tab.id);
      tab.addEventListener("click", () => choose(i));
      return tab;
    });
    list.addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (!step) return;
      const i = (tabs.indexOf(document.activeElement) + step + tabs.length) % tabs.length;
      choose(i);
      tabs[i].focus();
    });
    function choose(chosen) {
      tabs.forEach((tab, i) => {
        tab.setAttribute("aria-selected", i === chosen);
        tab.tabIndex = i === chosen ? 0 : -1;
        panels[i].classList.toggle("off", i !== chosen);
      });
      for (const box of panels[chosen].querySelectorAll(".plot")) if (specs.has(box)) Plotly.Plots.resize(box);
    }
    root.prepend(list);
    choose(0);
  }

  // on paper every figure that is not folded away, at the paper's width, two on a page
  window.addEventListener("beforeprint", () => {
    if (!window.Plotly) return; // not unpacked yet
    for (const box of boxes.filter((b) => !b.closest("details:not([open])"))) {
      draw(box); // by itself: a figure that never was of its own width cannot go back to it
      const { layout } = specs.get(box), { height } = layout;
      Plotly.relayout(box, { ...coloured(layout, false), width: PAPER, height: height < 1.6 * HALF ? Math.min(height, HALF) : height, autosize: false });
    }
  });
  window.addEventListener("afterprint", () => {
    for (const [box, { layout }] of specs) {
      Plotly.relayout(box, { ...coloured(layout, dark.matches), width: null, height: layout.height, autosize: true });
    }
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

  function table(root) {
    const { columns, rows, best, sort, rising } = JSON.parse(root.querySelector("script").textContent);
    const [text, status, count, more] = ["[name=text]", "[name=status]", ".count", ".more"].map((q) => root.querySelector(q));
    const head = root.querySelector("thead").appendChild(document.createElement("tr"));
    const body = root.querySelector("tbody");
    const statusAt = columns.findIndex((c) => c.name === "status");
    const lines = rows.map((row) => ({
      row, cells: row.map((v, i) => written(v, columns[i].digits)),
    }));
    for (const line of lines) line.text = line.cells.join("\n").toLowerCase();
    let by = sort, down = !rising, limit = STEP;

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

    function show() {
      headings.forEach((th, i) => {
        if (i === by) th.setAttribute("aria-sort", down ? "descending" : "ascending");
        else th.removeAttribute("aria-sort");
      });
      const wanted = text.value.trim().toLowerCase();
      const found = lines.filter((l) => l.text.includes(wanted) && (!status.value || l.row[statusAt] === status.value));
      found.sort((a, b) => compared(a.row[by], b.row[by], down));
      const page = found.slice(0, limit);
      body.replaceChildren(...page.map((line) => {
        const tr = document.createElement("tr");
        if (line.row[0] === best) tr.className = "best";
        line.cells.forEach((cell, i) => {
          const td = tr.appendChild(document.createElement("td"));
          td.textContent = cell;
          td.className = columns[i].numeric ? "n" : columns[i].name === "reason" ? "wide" : "";
        });
        return tr;
      }));
      const part = page.length < found.length ? `, the first ${page.length} shown` : "";
      count.textContent = `${found.length} of ${rows.length} trials${part}`;
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
  document.querySelectorAll(".trials-box").forEach(table);

  for (const button of document.querySelectorAll(".copy button")) {
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
})();
