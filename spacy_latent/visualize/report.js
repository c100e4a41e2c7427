"use strict";
// The gallery: docs as data, drawn when they come into view. Texts enter the page only as
// textContent and attribute values, never as markup.
(() => {
  const data = JSON.parse(document.getElementById("gallery-data").textContent);
  const SVG = "http://www.w3.org/2000/svg";
  const CHUNK = 20;
  const list = document.getElementById("docs");
  const status = document.getElementById("status");
  const end = document.getElementById("end");
  const field = (name) => document.getElementById(name);
  const state = { query: "", show: "all", sort: "corpus", down: false, layer: 0, zoom: 1, gold: true };
  let order = [];
  let shown = 0;

  const html = (name, attributes, ...children) => make(document.createElement(name), attributes, children);
  const svg = (name, attributes, ...children) => make(document.createElementNS(SVG, name), attributes, children);
  // Overrides would turn the direction of what follows.
  const inOrder = (value) => String(value).replace(/[\u202a-\u202e\u2066-\u2069]/g, "\ufffd");
  function make(node, attributes, children) {
    for (const [key, value] of Object.entries(attributes || {})) node.setAttribute(key, inOrder(value));
    for (const child of children) {
      if (child !== null) node.append(typeof child === "object" ? child : document.createTextNode(inOrder(child)));
    }
    return node;
  }

  // A doc: [words, gold label, predicted label, its probability, score, reference heads, layers].
  // A layer of a doc: [spans, entropy, depth, agreement]. A span: [start, end, decoded, percents],
  // and of an alignment the start and the end of the other text. data.rtl: docs from right to left.
  const fromRight = new Set(data.rtl);
  const words = (doc) => (typeof doc[0] === "string" ? (doc[0] ? doc[0].split(" ") : []) : doc[0]);
  const texts = new Map();
  function text(i) {
    if (!texts.has(i)) texts.set(i, words(data.docs[i]).join(" ").toLowerCase());
    return texts.get(i);
  }
  const layerOf = (i) => data.docs[i][6][state.layer] || [[], null, null, null];
  const KEYS = {
    corpus: (i) => i,
    length: (i) => words(data.docs[i]).length,
    score: (i) => data.docs[i][4],
    confidence: (i) => data.docs[i][3],
    entropy: (i) => layerOf(i)[1],
    depth: (i) => layerOf(i)[2],
    agreement: (i) => layerOf(i)[3],
  };

  function update() {
    const query = state.query.trim().toLowerCase();
    order = [];
    for (let i = 0; i < data.docs.length; i++) {
      const score = data.docs[i][4];
      if (state.show === "right" && !(score === 1)) continue;
      if (state.show === "wrong" && !(score !== null && score < 1)) continue;
      if (query && !text(i).includes(query)) continue;
      order.push(i);
    }
    const key = KEYS[state.sort];
    const sign = state.down ? -1 : 1;
    // Docs without such a number come last in both directions.
    order.sort((a, b) => {
      const x = key(a), y = key(b);
      if (x === null || y === null) return (x === null) - (y === null) || a - b;
      return sign * (x - y) || a - b;
    });
    list.replaceChildren();
    shown = 0;
    status.textContent = order.length + " of " + data.docs.length + (data.docs.length === 1 ? " doc" : " docs");
    if (!order.length) list.append(html("p", { class: "empty" }, "No doc fits. Change the search or the filter."));
    more();
  }

  function more() {
    for (const i of order.slice(shown, shown + CHUNK)) {
      const made = card(i);
      list.append(made);
      hint(made);
    }
    shown = Math.min(order.length, shown + CHUNK);
    end.textContent = shown < order.length ? shown + " drawn; scroll for more" : "";
    // Observing anew tells whether the end is still in view.
    watcher.unobserve(end);
    watcher.observe(end);
  }
  const watcher = new IntersectionObserver((entries) => {
    if (entries.some((entry) => entry.isIntersecting) && shown < order.length) more();
  }, { rootMargin: "400px" });

  // A note below a drawing that is wider than the page, which some systems give no scroll bar.
  function hint(made) {
    const drawing = made.querySelector(".drawing"), note = made.querySelector(".goes-on.wider");
    const wider = drawing.scrollWidth > drawing.clientWidth + 1;
    if (note && !wider) note.remove();
    if (wider && !note) {
      const side = drawing.dir === "rtl" ? "left" : "right";
      made.append(html("p", { class: "goes-on wider" }, `The drawing goes on to the ${side}: scroll it, or lower the size.`));
    }
  }
  addEventListener("resize", () => { list.querySelectorAll(".card").forEach(hint); });

  function card(i) {
    const doc = data.docs[i], tokens = words(doc);
    const [, gold, label, percent, score] = doc;
    const [spans, entropy, depth, agreement] = layerOf(i);
    const facts = html("header", {}, html("span", {}, "doc " + data.numbers[i]));
    const fact = (...parts) => facts.append(html("span", {}, ...parts));
    if (label !== null) {
      fact("predicted ", html("b", {}, html("bdi", {}, label)), percent === null ? "" : " (" + percent + " %)");
    }
    if (gold !== null) fact("reference ", html("b", {}, html("bdi", {}, gold)));
    if (score !== null) {
      const right = score === 1;
      facts.append(html("span", { class: right ? "right" : "wrong" },
        right ? "✓ right" : score ? "✗ " + Math.round(100 * score) + " % right" : "✗ wrong"));
    }
    if (entropy !== null) fact("entropy " + entropy + " nats/token");
    if (depth !== null) fact("depth " + depth);
    if (agreement !== null) fact("agreement with reference " + agreement + " %");
    const drawing = html("div", { class: "drawing", tabindex: "0", dir: fromRight.has(i) ? "rtl" : "ltr" });
    const kind = (data.layers[state.layer] || {}).kind;
    if (!spans.length) drawing.append(html("span", { class: "words" }, tokens.join(" ") || "(no tokens)"));
    for (const span of spans) drawing.append((DRAW[kind] || drawParts)(tokens, span, state.gold ? doc[5] : null));
    if (fromRight.has(i)) drawing.querySelectorAll("svg").forEach(mirror);
    return html("article", { class: "card" }, facts, drawing);
  }

  // ------------------------------------------------------------------ arcs

  const ruler = document.createElement("canvas").getContext("2d");
  ruler.font = "14px system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif";
  const visible = (word) => (word.trim() ? word : "␣");

  function drawHeads(tokens, span, gold) {
    const [start, , heads] = span;
    const arcs = heads.map((head, i) => ({ head: head - 1, modifier: i, percent: span[3] ? span[3][i] : null }));
    const below = [];
    if (gold) {
      for (let i = 0; i < heads.length; i++) {
        const head = gold[start + i];
        if (head < 0) continue;
        const own = head === start + i ? -1 : head - start;
        arcs[i].differs = own !== arcs[i].head;
        if (own < heads.length && (own >= 0 || head === start + i)) below.push({ head: own, modifier: i });
      }
    }
    return drawArcs(tokens, span, arcs, below);
  }

  function drawGraph(tokens, span) {
    const arcs = span[2].map(([head, modifier], i) =>
      ({ head: head - 1, modifier: modifier - 1, percent: span[3] ? span[3][i] : null }));
    return drawArcs(tokens, span, arcs, []);
  }

  function drawArcs(tokens, span, arcs, below) {
    const own = tokens.slice(span[0], span[1]).map(visible);
    const middles = [], ends = [];
    let x = 12;
    for (const word of own) {
      const width = Math.max(24, ruler.measureText(word).width + 4);
      middles.push(x + width / 2);
      x += width + 14;
      ends.push(x);
    }
    x = Math.max(labelRoots(arcs, middles, x, false), labelRoots(below, middles, x, true));
    ends[ends.length - 1] = x;
    const up = levels(arcs), down = levels(below);
    const step = (count) => (count > 12 ? 12 * 15 / count : 15);
    const room = 38 + step(up) * up;
    const base = room + 6, bottom = base + 24;
    const height = bottom + (below.length ? 34 + step(down) * down : 2);
    const told = arcs.map((arc) => own[arc.modifier] + " ← " + (arc.head < 0 ? "root" : own[arc.head])).join(", ");
    const root = canvas(x, height, told);
    own.forEach((word, i) => {
      root.append(svg("text", { x: middles[i], y: base + 14, "text-anchor": "middle" }, word));
    });
    for (const arc of arcs) root.append(drawArc(arc, middles, base, -1, step(up), room, own));
    // Over all lines, and only where levels leave room for them.
    if (step(up) >= 12) {
      for (const arc of arcs) root.append(...percentAbove(arc, middles, base, step(up)));
    }
    for (const arc of below) {
      root.append(drawArc({ ...arc, gold: true }, middles, bottom, 1, step(down), height - bottom - 4, own));
    }
    return folded(root, ends, height);
  }

  // Give each root the longest label that ends before the next root; its title has all of it. Return
  // a width of the drawing in which the last label fits.
  function labelRoots(arcs, middles, width, gold) {
    const roots = arcs.filter((arc) => arc.head < 0).sort((a, b) => a.modifier - b.modifier);
    const sized = (label) => ruler.measureText(label).width * 12 / 14 + 10;
    roots.forEach((arc, i) => {
      const from = middles[arc.modifier];
      const known = !gold && arc.percent !== null && arc.percent !== undefined;
      const labels = known ? ["root " + arc.percent + " %", arc.percent + " %"] : ["root"];
      if (i + 1 === roots.length) {
        arc.label = labels[0];
        width = Math.max(width, from + sized(labels[0]));
      } else {
        const free = middles[roots[i + 1].modifier] - from;
        arc.label = labels.find((label) => sized(label) <= free) || "";
      }
    });
    return width;
  }

  // Give each arc the level above all shorter arcs that overlap with it. Return the highest level.
  function levels(arcs) {
    const sorted = arcs.filter((arc) => arc.head >= 0)
      .sort((a, b) => Math.abs(a.head - a.modifier) - Math.abs(b.head - b.modifier));
    const tops = [];
    let most = 0;
    for (const arc of sorted) {
      const low = Math.min(arc.head, arc.modifier), high = Math.max(arc.head, arc.modifier);
      let level = 0;
      for (let i = low; i < high; i++) level = Math.max(level, tops[i] || 0);
      arc.level = level + 1;
      for (let i = low; i < high; i++) tops[i] = level + 1;
      most = Math.max(most, level + 1);
    }
    return most;
  }

  function drawArc(arc, middles, base, sign, step, room, own) {
    const group = svg("g", { class: arc.gold ? "gold" : arc.differs ? "differs" : "" });
    const to = middles[arc.modifier];
    const percent = arc.percent === null || arc.percent === undefined ? "" : ", " + arc.percent + " %";
    const name = arc.head < 0 ? "root" : own[arc.head];
    group.append(svg("title", {}, (arc.gold ? "reference: " : "") + name + " → " + own[arc.modifier] + percent));
    if (arc.head < 0) {
      const top = base + sign * (room - 6);
      group.append(svg("path", { class: "arc", d: `M${to},${top}V${base + sign * 5}` }));
      group.append(svg("text", { class: "small", x: to + 4, y: top + (sign < 0 ? 6 : 4) }, arc.label));
    } else {
      const away = arc.modifier > arc.head ? 1 : -1;
      const from = middles[arc.head] + 5 * away, at = to - 3 * away;
      const top = base + sign * (8 + step * arc.level);
      const bend = Math.min(10, Math.abs(at - from) / 2);
      const turn = sign * Math.min(10, 8 + step * arc.level);
      group.append(svg("path", { class: "arc", d: `M${from},${base}V${top - turn}Q${from},${top} ${from + away * bend},${top}` +
        `H${at - away * bend}Q${at},${top} ${at},${top - turn}V${base + sign * 5}` }));
    }
    const tip = arc.head < 0 ? to : to - 3 * (arc.modifier > arc.head ? 1 : -1);
    group.append(svg("path", { class: "head", d: `M${tip},${base}l-4,${sign * 8}h8z` }));
    return group;
  }

  // The probability of an arc, above its line.
  function percentAbove(arc, middles, base, step) {
    if (arc.head < 0 || arc.percent === null) return [];
    const middle = (middles[arc.head] + middles[arc.modifier]) / 2 + (arc.modifier > arc.head ? 1 : -1);
    const at = { class: "percent", x: middle, y: base - 8 - step * arc.level - 2.5, "text-anchor": "middle" };
    return [svg("text", at, arc.percent + " %")];
  }

  // Rows of a long text, as in visualize/picture.py: arcs that cross the end of a row go on in the next.
  const LONG = 60, FOLD = 900;
  function folded(drawn, ends, height) {
    if (ends.length <= LONG) return drawn;
    const rows = html("div", { class: "rows" });
    rows.append(html("p", { class: "goes-on" }, "In rows: an arc that ends at the side goes on in the next row."));
    let start = 0, last = 0;
    const cut = (end) => {
      const row = drawn.cloneNode(true);
      row.setAttribute("viewBox", `${start} 0 ${end - start} ${height}`);
      row.dataset.width = end - start;
      if (start) row.setAttribute("aria-hidden", "true");
      scale(row);
      rows.append(row);
      start = end;
    };
    for (const end of ends) {
      if (end - start > FOLD && last > start) cut(last);
      last = end;
    }
    cut(Number(drawn.dataset.width));
    return rows;
  }

  // A drawing of a text that is written from right to left. Texts in it are not turned round.
  function mirror(drawn) {
    const [start, , width] = drawn.getAttribute("viewBox").split(" ").map(Number);
    const all = svg("g", { transform: `translate(${2 * start + width} 0) scale(-1 1)` }, ...drawn.childNodes);
    for (const node of all.querySelectorAll("text")) {
      node.setAttribute("transform", `translate(${2 * node.getAttribute("x")} 0) scale(-1 1)`);
      const anchor = { middle: "middle", end: "start" }[node.getAttribute("text-anchor")] || "end";
      node.setAttribute("text-anchor", anchor);
    }
    drawn.append(all);
  }

  function canvas(width, height, told) {
    const drawn = svg("svg", { role: "img", "aria-label": told, viewBox: `0 0 ${width} ${height}` });
    drawn.dataset.width = width;
    scale(drawn);
    return drawn;
  }

  function scale(drawn) {
    drawn.style.width = drawn.dataset.width * state.zoom + "px";
    drawn.style.maxWidth = "none";
  }

  // ------------------------------------------------------------------ brackets

  function drawBrackets(tokens, span) {
    const own = tokens.slice(span[0], span[1]).map(visible);
    const edges = [12];
    for (const word of own) edges.push(edges[edges.length - 1] + Math.max(24, ruler.measureText(word).width + 4) + 12);
    const brackets = span[2].map(([first, last], i) => ({ first, last, percent: span[3] ? span[3][i] : null }))
      .filter((bracket) => bracket.last > bracket.first).sort((a, b) => a.last - a.first - (b.last - b.first));
    const tops = new Array(own.length).fill(0);
    let most = 0;
    for (const bracket of brackets) {
      bracket.level = 1 + Math.max(...tops.slice(bracket.first, bracket.last + 1));
      tops.fill(bracket.level, bracket.first, bracket.last + 1);
      most = Math.max(most, bracket.level);
    }
    const base = 14 * most + 18, width = edges[own.length];
    const told = brackets.map((b) => own.slice(b.first, b.last + 1).join(" ")).join("; ");
    const root = canvas(width, base + 24, told);
    own.forEach((word, i) => {
      const middle = (edges[i] + edges[i + 1] - 12) / 2;
      root.append(svg("text", { x: middle, y: base + 14, "text-anchor": "middle" }, word));
    });
    for (const bracket of brackets) {
      const y = base - 14 * bracket.level + 4, left = edges[bracket.first] + 2, right = edges[bracket.last + 1] - 14;
      const group = svg("g", {}, svg("title", {}, own.slice(bracket.first, bracket.last + 1).join(" ") +
        (bracket.percent === null ? "" : ", " + bracket.percent + " %")));
      group.append(svg("path", { class: "arc", d: `M${left},${y + 7}V${y}H${right}V${y + 7}` }));
      if (bracket.percent !== null) {
        const at = { class: "percent", x: (left + right) / 2, y: y - 2, "text-anchor": "middle" };
        group.append(svg("text", at, bracket.percent + " %"));
      }
      root.append(group);
    }
    return folded(root, edges.slice(1), base + 24);
  }

  // ------------------------------------------------------------------ alignments

  // Columns, not rows: lines stay short when the texts are long. As visualize/alignment_svg.py.
  function drawAlignment(tokens, span) {
    const own = tokens.slice(span[0], span[1]).map(visible), other = tokens.slice(span[4], span[5]).map(visible);
    const widest = (texts) => Math.max(...texts.map((word) => ruler.measureText(word).width));
    const row = 22, rows = Math.max(own.length, other.length);
    const start = 12 + widest(own) + 8, end = start + Math.min(460, Math.max(150, rows * row / 2));
    const width = end + 8 + widest(other) + 12, height = rows * row + 8;
    const y = (i, texts) => 4 + (i + 0.5) * rows * row / texts.length;
    const told = span[2].map(([i, j]) => own[i] + " ~ " + other[j]);
    const root = canvas(width, height, told.join(", "));
    span[2].forEach(([i, j], k) => {
      const group = svg("g", { class: "cell" }, svg("title", {}, told[k] + (span[3] ? ", " + span[3][k] + " %" : "")));
      const from = y(i, own), to = y(j, other), middle = (start + end) / 2;
      const line = svg("path", { class: "arc", d: `M${start},${from}C${middle},${from} ${middle},${to} ${end},${to}` });
      // As probable as the pair, and never out of sight.
      if (span[3]) line.style.opacity = 0.25 + 0.75 * span[3][k] / 100;
      group.append(line);
      root.append(group);
    });
    own.forEach((word, i) => root.append(svg("text", { x: start - 8, y: y(i, own) + 5, "text-anchor": "end" }, word)));
    other.forEach((word, j) => root.append(svg("text", { x: end + 8, y: y(j, other) + 5 }, word)));
    return root;
  }

  // ------------------------------------------------------------------ marked text

  const COLOURS = ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#999999"];
  const percentOf = (span, i) => (span[3] ? span[3][i] + " %" : "");
  const line = (nodes) => html("div", { class: "words" }, ...nodes);

  // Words with their tag or label, and the probability of part i of the span.
  function labelled(words, label, span, i) {
    const block = html("bdi", { class: "block", title: percentOf(span, i) }, words, html("sub", {}, label));
    block.style.borderBottom = "3px solid " + COLOURS[label % COLOURS.length];
    return block;
  }

  function drawItems(tokens, span) {
    const place = new Map(span[2].map((item, i) => [item, i]));
    const mark = (word, i) => (place.has(i) ? html("mark", { title: percentOf(span, place.get(i)) }, word) : word);
    return line(tokens.slice(span[0], span[1]).map((word, i) => html("bdi", {}, mark(visible(word), i))));
  }

  function drawTags(tokens, span) {
    return line(tokens.slice(span[0], span[1]).map((word, i) => labelled(visible(word), span[2][i], span, i)));
  }

  function drawSegments(tokens, span) {
    const own = tokens.slice(span[0], span[1]).map(visible);
    return line(span[2].map(([first, stop, label], i) => labelled(own.slice(first, stop).join(" "), label, span, i)));
  }

  function drawParts(tokens, span) {
    return html("div", { class: "words" }, tokens.slice(span[0], span[1]).join(" "), " — ",
      span[2].map((part) => [].concat(part).join(" ~ ")).join(", "));
  }

  const DRAW = { heads: drawHeads, arcs: drawGraph, spans: drawBrackets, items: drawItems, tags: drawTags,
    segments: drawSegments, cells: drawAlignment };

  // ------------------------------------------------------------------ controls

  const on = (name, event, change) => {
    const node = field(name);
    if (node) node.addEventListener(event, () => { change(node); });
  };
  let waiting = 0;
  on("query", "input", (node) => {
    clearTimeout(waiting);
    waiting = setTimeout(() => { state.query = node.value; update(); }, 120);
  });
  on("show", "change", (node) => { state.show = node.value; update(); });
  on("sort", "change", (node) => { state.sort = node.value; update(); });
  on("layer", "change", (node) => { state.layer = Number(node.value); update(); });
  on("gold", "change", (node) => { state.gold = node.checked; update(); });
  on("down", "click", (node) => {
    state.down = !state.down;
    node.setAttribute("aria-pressed", state.down);
    node.textContent = state.down ? "↓ falling" : "↑ rising";
    update();
  });
  on("zoom", "input", (node) => {
    state.zoom = node.value / 100;
    field("percent").textContent = node.value + " %";
    document.documentElement.style.setProperty("--zoom", state.zoom);
    list.querySelectorAll("svg").forEach(scale);
    list.querySelectorAll(".card").forEach(hint);
  });
  for (const button of document.querySelectorAll("th button")) {
    button.addEventListener("click", () => {
      const cell = button.closest("th"), table = button.closest("table");
      const falling = cell.getAttribute("aria-sort") !== "descending";
      table.querySelectorAll("th").forEach((other) => other.removeAttribute("aria-sort"));
      cell.setAttribute("aria-sort", falling ? "descending" : "ascending");
      const value = (row) => row.cells[cell.cellIndex].dataset.value;
      const rows = [...table.tBodies[0].rows];
      rows.sort((a, b) => {
        const x = Number(value(a)), y = Number(value(b));
        const by = Number.isNaN(x) || Number.isNaN(y) ? value(a).localeCompare(value(b)) : x - y;
        return falling ? -by : by;
      });
      table.tBodies[0].append(...rows);
    });
  }
  update();
})();
