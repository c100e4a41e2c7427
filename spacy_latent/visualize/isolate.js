// Words of a drawing that stand out with their parts, by pointing and by the keyboard.
"use strict";
// node: gets the class "isolating". drawing: inside of it, with data-word on words and data-words on
// parts. picked: returns the words that stand out while none is pointed at. pick: called with a word,
// or with undefined for none.
function standOut(node, drawing, picked, pick) {
  const words = [...drawing.querySelectorAll("[data-word]")];
  function isolate(wanted) {
    node.classList.toggle("isolating", wanted.length > 0);
    for (const word of words) word.classList.toggle("of-word", wanted.includes(word.dataset.word));
    for (const part of drawing.querySelectorAll("[data-words]")) {
      const own = part.dataset.words.split(" ");
      part.classList.toggle("of-word", wanted.length > 0 && wanted.every((word) => own.includes(word)));
    }
  }
  function show() {
    for (const word of words) word.setAttribute("aria-pressed", picked().includes(word.dataset.word));
    isolate(picked());
  }
  // One stop of the keyboard for all words, and arrows between them.
  words.forEach((word, k) => {
    word.setAttribute("tabindex", k === 0 ? "0" : "-1");
    word.setAttribute("role", "button");
    word.setAttribute("aria-label", word.lastChild ? word.lastChild.textContent : word.textContent);
    word.addEventListener("mouseenter", () => isolate([word.dataset.word]));
    word.addEventListener("mouseleave", () => isolate(picked()));
    word.addEventListener("focus", () => isolate([word.dataset.word]));
    word.addEventListener("blur", () => isolate(picked()));
    word.addEventListener("click", () => pick(word.dataset.word));
    word.addEventListener("keydown", (event) => {
      const next = getComputedStyle(word).direction === "rtl" ? -1 : 1;
      const to = { ArrowRight: k + next, ArrowLeft: k - next, ArrowDown: k + 1, ArrowUp: k - 1, Home: 0, End: words.length - 1 }[event.key];
      if (event.key === "Enter" || event.key === " ") pick(word.dataset.word);
      else if (event.key === "Escape") pick(undefined);
      else if (to !== undefined && words[to]) {
        words.forEach((other) => other.setAttribute("tabindex", "-1"));
        words[to].setAttribute("tabindex", "0");
        words[to].focus();
      } else return;
      event.preventDefault();
    });
  });
  // A screen reader names no words inside of an element with the role img.
  if (words.length) {
    drawing.querySelectorAll("svg[role=img]").forEach((svg) => svg.setAttribute("role", "group"));
  }
  return { words, isolate, show };
}
