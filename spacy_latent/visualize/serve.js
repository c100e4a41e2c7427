// The page of 'spacy latent serve': asks for what it shows, and draws nothing itself.
"use strict";
(async () => {
  const field = (id) => document.getElementById(id);
  const status = field("status"), columns = field("columns");
  const models = await (await fetch("/models")).json();
  const state = { texts: [], temperature: 1, step: models.steps.length - 1, turn: 0, instead: "" };
  const shown = models.beside === null ? [column()] : [column(), column()];

  function column() {
    // edits: by name, so that a part has one edit at most. words: the picked word of each structure.
    return { edits: new Map(), base: null, found: null, error: null, words: new Map(), opened: new Set() };
  }

  const modelOf = (i) => (i === 0 ? state.step : models.steps.length);
  const nameOf = (i) => (i === 0 ? models.steps[state.step] : models.beside);

  // Overrides would turn the direction of what follows.
  const inOrder = (child) => (typeof child === "string" ? child.replace(/[\u202a-\u202e\u2066-\u2069]/g, "\ufffd") : child);

  function html(name, attributes, ...children) {
    const node = document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) {
      if (key === "on") for (const [event, act] of Object.entries(value)) node.addEventListener(event, act);
      else if (value !== null && value !== false) node.setAttribute(key, value === true ? "" : value);
    }
    node.append(...children.filter((child) => child !== null).map(inOrder));
    return node;
  }

  // Drawings come as markup whose texts are escaped. Declarations are set one by one, since the policy
  // of this page lets no style stand in markup.
  let drawings = 0;
  function drawn(markup) {
    const holder = document.createElement("template");
    holder.innerHTML = markup.replaceAll(' style="', ' data-style="');
    // The same drawing may stand twice in this page, and its identifiers only once.
    const turn = ++drawings;
    const again = (names) => names.replace(/sl-[0-9a-f]{12}/g, (name) => `${name}-${turn}`);
    for (const name of ["id", "aria-labelledby", "href"]) {
      for (const node of holder.content.querySelectorAll(`[${name}]`)) node.setAttribute(name, again(node.getAttribute(name)));
    }
    for (const node of holder.content.querySelectorAll("[data-style]")) {
      node.style.cssText = node.dataset.style;
      node.removeAttribute("data-style");
    }
    return holder.content;
  }

  // ------------------------------------------------------------------ asking

  async function ask(i, edits, temperature) {
    const body = JSON.stringify({ model: modelOf(i), texts: state.texts, edits, temperature });
    let made;
    try {
      const headers = { "Content-Type": "application/json" };
      const reply = await fetch("/read", { method: "POST", headers, body });
      // An answer that is no JSON comes from the web server itself, if it has too much to do.
      made = await reply.json();
    } catch {
      throw { title: "The server does not answer", text: "Is 'spacy latent serve' still running, or busy?" };
    }
    if (made.error) throw made.error;
    return made;
  }

  const changed = (own) => own.edits.size > 0 || state.temperature !== 1;

  // anew: the text or the model changed, so that the prediction without edits is needed, too.
  async function read(anew) {
    if (!state.texts.some((text) => text.trim())) {
      status.textContent = "Type a text and press Read.";
      return;
    }
    const turn = ++state.turn;
    status.textContent = "Reading …";
    columns.classList.add("busy");
    const wait = shown.map(async (own, i) => {
      try {
        let base = own.base;
        if (anew || base === null) base = await ask(i, [], 1);
        const found = changed(own) ? await ask(i, [...own.edits.values()].map((one) => one.edit), state.temperature) : base;
        if (turn === state.turn) Object.assign(own, { base, found, error: null });
      } catch (error) {
        if (!error.title) throw error;
        if (turn === state.turn) own.error = error;
      }
    });
    await Promise.all(wait);
    if (turn !== state.turn) return;
    columns.classList.remove("busy");
    draw();
    status.textContent = shown.map((own, i) => (models.beside === null ? "" : nameOf(i) + ": ") + summary(own)).join(" ");
  }

  function summary(own) {
    if (own.error) return own.error.title + ".";
    const [best] = own.found.cats;
    const count = own.found.entities.length;
    let told = best ? `predicted ${best[0]}, ${percent(best[1])}` : count === 1 ? "1 entity" : count + " entities";
    if (!best && !count) told = "read";
    return changed(own) ? `${told}, with ${asks(own)}.` : told + ".";
  }

  function asks(own) {
    const parts = own.edits.size ? [own.edits.size === 1 ? "1 edit" : own.edits.size + " edits"] : [];
    if (state.temperature !== 1) parts.push("temperature × " + state.temperature);
    return parts.join(" and ");
  }

  // A regression predicts no probability.
  const percent = (p) => (p === null ? "" : p >= 0 && p <= 1 ? (100 * p).toFixed(1) + " %" : p.toPrecision(4));

  // ------------------------------------------------------------------ drawing

  function draw() {
    const focused = document.activeElement && document.activeElement.dataset.focus;
    columns.classList.toggle("two", shown.length > 1);
    columns.replaceChildren(...shown.map(drawColumn));
    const places = [...document.querySelectorAll("[data-focus]")];
    const at = (wanted) => places.find((node) => node.dataset.focus === wanted);
    // The pressed button may be gone: a forbidden part is no longer listed.
    const again = focused && (at(focused) || at(state.instead));
    if (again) again.focus({ preventScroll: true });
  }

  function drawColumn(own, i) {
    const node = html("section", { class: "column", "aria-label": nameOf(i) }, html("h2", {}, nameOf(i)));
    node.append(drawEdits(own, i));
    if (own.error) {
      node.append(html("div", { class: "error", role: "alert" }, html("b", {}, own.error.title), own.error.text));
    }
    if (!own.found || (own.error && own.found === own.base && !own.edits.size)) return node;
    if (own.error) {
      node.append(html("p", { class: "soft" }, "Below is what was found before."));
    }
    if (own.found.cats.length) node.append(drawCats(own));
    if (own.found.entities.length) node.append(drawEntities(own.found.entities));
    if (!own.found.structures.length) node.append(html("p", {}, "There are no structures of this text."));
    own.found.structures.forEach((one) => node.append(drawStructure(own, i, one)));
    return node;
  }

  function drawEdits(own, i) {
    if (!own.edits.size) return html("p", { class: "soft" }, "Nothing is forbidden or forced.");
    // Edits are shown in the words of their part as soon as these are known.
    for (const one of own.found ? own.found.structures : []) {
      for (const { part, told } of one.parts) {
        const known = own.edits.get(nameOfPart(one, part));
        if (known) known.told = told;
      }
    }
    const list = html("ul", { class: "edits", "aria-label": "Edits" });
    for (const [name, { edit, told }] of own.edits) {
      const back = html("button", { type: "button", "aria-label": "Take back: " + verb(edit) + " " + told, "data-focus": `${i} back ${name}`,
        on: { click: () => { own.edits.delete(name); state.instead = `${i} ${edit.key} ${edit.start} filter`; read(false); } } }, "×");
      list.append(html("li", {}, html("b", {}, verb(edit)), " ", html("bdi", {}, told), " ", back));
    }
    const all = html("button", { type: "button", "data-focus": `${i} clear`, on: { click: () => { own.edits.clear(); read(false); } } }, "Take all back");
    return html("div", { class: "all" }, list, all);
  }

  const verb = (edit) => (edit.force ? "forced" : "forbidden");

  function drawCats(own) {
    const before = new Map(own.base.cats), beside = changed(own);
    const head = html("tr", {}, html("th", {}, "Category"), html("th", { class: "number" }, "Probability"), html("th", { class: "bar" }, ""),
      beside ? html("th", { class: "number" }, "Without edits") : null);
    const rows = own.found.cats.slice(0, 12).map(([label, p]) => html("tr", {},
      html("td", { class: "told" }, html("bdi", {}, label)),
      html("td", { class: "number" }, percent(p)),
      html("td", { class: "bar" }, meter(p)),
      beside ? html("td", { class: "number" }, difference(p, before.get(label))) : null));
    const more = own.found.cats.length - rows.length;
    return html("div", {}, html("table", { class: "numbers cats" }, html("thead", {}, head), html("tbody", {}, ...rows)),
      more > 0 ? html("p", { class: "soft" }, `and ${more} less probable`) : null);
  }

  function difference(now, before) {
    const points = 100 * (now - before);
    const shift = Math.abs(points) < 0.05 ? "same" : (points > 0 ? "now +" : "now −") + Math.abs(points).toFixed(1);
    return `${percent(before)} (${shift})`;
  }

  function meter(p) {
    const bar = html("span", {});
    bar.style.width = 100 * Math.min(1, Math.max(0, p)) + "%";
    return html("span", { class: "meter", "aria-hidden": "true" }, bar);
  }

  function drawEntities(entities) {
    const rows = entities.map(([text, label, p]) => html("tr", {}, html("td", { class: "told" }, html("bdi", {}, text)),
      html("td", {}, html("bdi", {}, label)), html("td", { class: "number" }, p === null ? "not known" : percent(p))));
    return html("table", { class: "numbers entities" }, html("thead", {}, html("tr", {}, html("th", {}, "Entity"), html("th", {}, "Label"),
      html("th", { class: "number" }, "Confidence"))), html("tbody", {}, ...rows));
  }

  function drawStructure(own, i, one) {
    const place = `${i} ${one.key} ${one.start}`;
    const node = html("section", { class: "structure", "aria-label": one.name + " of " + one.key });
    node.append(html("h3", {}, one.name, " of ", html("code", {}, one.key)));
    const drawing = html("div", { class: "drawing" }, drawn(one.drawing));
    node.append(drawing);
    for (const part of one.parts) {
      const known = own.edits.get(nameOfPart(one, part.part));
      if (!known || !known.edit.force) continue;
      const wanted = [...part.words].sort().join(" ");
      for (const shape of drawing.querySelectorAll("[data-words]")) {
        shape.classList.toggle("asked", shape.classList.contains("asked") || shape.dataset.words.split(" ").sort().join(" ") === wanted);
      }
    }
    const table = drawParts(own, i, one, place);
    const picked = () => (own.words.has(place) ? [own.words.get(place)] : []);
    function pick(word) {
      if (word === undefined || word === "" || own.words.get(place) === word) own.words.delete(place);
      else own.words.set(place, word);
      table.filter(own.words.get(place));
      standing.show();
    }
    const standing = standOut(node, drawing, picked, pick);
    for (const word of standing.words) word.dataset.focus = `${place} word ${word.dataset.word}`;
    table.onRow((wanted) => standing.isolate(wanted || picked()));
    table.onPick(pick);
    node.append(table.node);
    if (one.why_not) node.append(html("p", { class: "soft" }, "These structures cannot be edited: " + one.why_not + "."));
    else if (one.axes.length) node.append(drawChoice(own, i, one, place));
    if (one.alternatives) {
      const details = html("details", { on: { toggle: () => own.opened[details.open ? "add" : "delete"](place) } },
        html("summary", { "data-focus": place + " alternatives" }, "Alternatives, the heaviest first"), drawn(one.alternatives));
      details.open = own.opened.has(place);
      details.querySelectorAll("[data-word]").forEach((word) => word.removeAttribute("data-word"));
      node.append(details);
    }
    standing.show();
    const common = shared(i, one);
    if (common) drawing.append(html("p", { class: "soft" }, common));
    return node;
  }

  // The number of parts that the structure of the other pipeline has, too.
  function shared(i, one) {
    const other = shown.length > 1 ? shown[1 - i].found : null;
    const theirs = other && other.structures.find((found) => found.start === one.start && found.name === one.name);
    if (!theirs) return "";
    const known = new Set(theirs.parts.filter((part) => part.chosen).map((part) => String(part.part)));
    const own = one.parts.filter((part) => part.chosen);
    return `${own.filter((part) => known.has(String(part.part))).length} of ${own.length} parts are in that of ${nameOf(1 - i)}, too.`;
  }

  const nameOfPart = (one, part) => JSON.stringify([one.key, one.start, part]);

  function editOf(own, i, one, part, force, told) {
    const name = nameOfPart(one, part);
    state.instead = `${i} back ${name}`;
    const known = own.edits.get(name);
    if (known && known.edit.force === force) own.edits.delete(name);
    else own.edits.set(name, { edit: { key: one.key, start: one.start, part, force }, told });
    read(false);
  }

  function drawParts(own, i, one, place) {
    const asked = (part, force) => {
      const known = own.edits.get(nameOfPart(one, part));
      return known !== undefined && known.edit.force === force;
    };
    let onRow = () => {}, onPick = () => {};
    const rows = one.parts.map((found) => {
      const act = (force, shown) => html("button", { type: "button", "aria-pressed": String(asked(found.part, force)),
        "aria-label": shown + ": " + found.told, "data-focus": `${place} ${found.part} ${force}`,
        on: { click: () => editOf(own, i, one, found.part, force, found.told) } }, shown);
      return html("tr", { class: found.chosen ? "chosen" : "other", "data-of": found.words.join(" "),
        on: { mouseenter: () => onRow(found.words), mouseleave: () => onRow(null), focusin: () => onRow(found.words), focusout: () => onRow(null) } },
      html("td", { class: "told" }, html("bdi", {}, found.told)),
      html("td", { class: "number" }, found.probability === null ? "" : percent(found.probability)),
      html("td", { class: "best" }, found.chosen ? "chosen" : ""),
      one.why_not ? null : html("td", { class: "acts" }, act(false, "Forbid"), act(true, "Force")));
    });
    const word = html("select", { "data-focus": place + " filter", on: { change: () => onPick(word.value) } },
      html("option", { value: "" }, "every word"), ...one.words.map((text, k) => html("option", { value: k }, `${k + 1} ${text}`)));
    const body = html("tbody", {}, ...rows);
    const head = html("tr", {}, html("th", {}, "Part"), html("th", { class: "number" }, "Probability"), html("th", { class: "best" }, "Best structure"),
      one.why_not ? null : html("th", { class: "acts" }, "Ask for"));
    const box = html("div", { class: "parts", tabindex: "0", role: "region", "aria-label": "Parts of " + one.name }, html("table", { class: "numbers" }, html("thead", {}, head), body));
    const node = html("div", {}, html("label", {}, "Parts of ", word), box);
    // The least probable part that is chosen, beside the most probable one that is not.
    const known = one.parts.filter((part) => part.probability !== null);
    const least = Math.min(...known.filter((part) => part.chosen).map((part) => part.probability));
    const left = Math.max(...known.filter((part) => !part.chosen).map((part) => part.probability));
    if (left > least) {
      box.before(html("p", { class: "soft" }, `The best structure is the most probable as a whole. So it has a part of ${percent(least)} `
        + `and leaves out one of ${percent(left)}: parts have to fit together. In a tree, for example, each word has one head, and there may be only one root.`));
    }
    function filter(wanted) {
      word.value = wanted !== undefined && /^\d+$/.test(wanted) ? wanted : "";
      for (const row of body.rows) row.hidden = wanted !== undefined && !row.dataset.of.split(" ").includes(wanted);
    }
    filter(own.words.get(place));
    return { node, filter, onRow: (act) => { onRow = act; }, onPick: (act) => { onPick = act; } };
  }

  // Any part, whether it is listed or not.
  function drawChoice(own, i, one, place) {
    const selects = one.axes.map((axis) => html("select", { "data-focus": `${place} axis ${axis.name}` },
      ...axis.options.map((text, k) => html("option", { value: k + axis.first }, text))));
    const act = (force, shown) => html("button", { type: "button", "data-focus": `${place} choice ${force}`, on: { click: () => {
      const part = selects.map((select) => Number(select.value));
      const told = one.axes.map((axis, k) => `${axis.name} ${selects[k].selectedOptions[0].textContent.trim()}`).join(", ");
      editOf(own, i, one, part, force, told);
    } } }, shown);
    return html("fieldset", {}, html("legend", {}, "Any other part"),
      ...one.axes.map((axis, k) => html("label", {}, axis.name, selects[k])), act(false, "Forbid"), act(true, "Force"));
  }

  // ------------------------------------------------------------------ controls

  document.title = `${models.steps[models.steps.length - 1]} – latent structures`;
  const pair = models.pairs[0];
  const areas = (pair ? ["First text", "Second text"] : ["Text"]).map((name, k) => {
    const area = html("textarea", { id: "text-" + k, spellcheck: "false", maxlength: models.characters, autocomplete: "off" });
    area.value = models.example[k] || "";
    area.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) field("form").requestSubmit();
    });
    field("texts").append(html("label", { for: area.id }, name), area);
    return area;
  });

  field("form").addEventListener("submit", (event) => {
    event.preventDefault();
    const texts = areas.map((area) => area.value);
    // Edits and picked words belong to one text.
    if (JSON.stringify(texts) !== JSON.stringify(state.texts)) shown.forEach((own, i) => { shown[i] = column(); });
    state.texts = texts;
    read(true);
  });

  let waiting = 0;
  function later(act) {
    clearTimeout(waiting);
    waiting = setTimeout(act, 150);
  }
  const temperature = field("temperature");
  function heat() {
    // From 0.01 to 100, by its logarithm.
    state.temperature = Number((10 ** Number(temperature.value)).toPrecision(2));
    field("temperature-value").textContent = "× " + state.temperature;
    temperature.setAttribute("aria-valuetext", state.temperature + " times that of the model");
    later(() => read(false));
  }
  temperature.addEventListener("input", heat);
  field("temperature-reset").addEventListener("click", () => { temperature.value = 0; heat(); });

  const step = field("step");
  if (models.steps.length > 1) {
    field("step-control").hidden = false;
    step.max = models.steps.length - 1;
    step.value = state.step;
    const tell = () => {
      field("step-name").textContent = `${state.step + 1} of ${models.steps.length}: ${models.steps[state.step]}`;
      step.setAttribute("aria-valuetext", field("step-name").textContent);
    };
    tell();
    step.addEventListener("input", () => {
      state.step = Number(step.value);
      tell();
      shown[0].base = null;
      later(() => read(false));
    });
  }

  if (areas.some((area) => area.value)) field("form").requestSubmit();
  else areas[0].focus();
})();
