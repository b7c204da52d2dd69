// Texts of the page that a person couldn't read: cut, outside of the window, or on top of another one.
() => {
  const found = [];
  const wide = document.documentElement.clientWidth;
  const boxes = [];
  const shown = (node) => node.checkVisibility({ visibilityProperty: true, opacityProperty: true });
  const named = (text) => JSON.stringify(text.trim().replace(/\s+/g, " ").slice(0, 60));

  // The part of a box that is seen: parents that scroll show some of their content at a time.
  function seen(box, node) {
    let { left, right, top, bottom } = box;
    for (let at = node; at && at !== document.body; at = at.parentElement) {
      const style = getComputedStyle(at);
      if (style.overflowX === "visible" && style.overflowY === "visible") continue;
      if (at instanceof SVGElement && at.tagName !== "svg") continue;
      const around = at.getBoundingClientRect();
      const scrolls = /auto|scroll/.test(`${style.overflowX} ${style.overflowY}`) && style.scrollbarWidth !== "none";
      if (!scrolls && (right > around.right + 1 || left < around.left - 1 || bottom > around.bottom + 2 || top < around.top - 2)) found.push(`cut: ${named(node.textContent)} by ${at.tagName}.${at.className.baseVal ?? at.className}`);
      [left, right, top, bottom] = [Math.max(left, around.left), Math.min(right, around.right), Math.max(top, around.top), Math.min(bottom, around.bottom)];
    }
    return { left, right, top, bottom };
  }

  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let node = texts.nextNode(); node; node = texts.nextNode()) {
    const parent = node.parentElement;
    if (!node.data.trim() || parent.closest("script, noscript, title, option") || !shown(parent)) continue;
    const range = document.createRange();
    range.selectNodeContents(node);
    for (const rect of range.getClientRects()) {
      if (rect.width < 1 || rect.height < 1) continue;
      const box = seen(rect, parent);
      if (box.right - box.left < 1 || box.bottom - box.top < 1) continue;
      if (box.right > wide + 1 || box.left < -1) found.push(`outside: ${named(node.data)}`);
      boxes.push({ ...box, text: node.data, node });
    }
  }

  // A word of a state, of a heading of a column or on a button is in one line.
  for (const node of document.querySelectorAll(".state, th, button, .button")) {
    const inside = document.createTreeWalker(node, NodeFilter.SHOW_TEXT);
    for (let text = inside.nextNode(); text; text = inside.nextNode()) {
      if (!shown(node)) continue;
      for (const { index, 0: word } of text.data.matchAll(/[A-Za-z]+/g)) {
        const range = document.createRange();
        range.setStart(text, index);
        range.setEnd(text, index + word.length);
        if (new Set([...range.getClientRects()].map(({ top }) => Math.round(top))).size > 1) found.push(`broken: ${named(word)}`);
      }
    }
  }

  // What is typed or chosen in a field, or stands for it.
  for (const input of document.querySelectorAll("input:not([type=checkbox]), select")) {
    const context = document.createElement("canvas").getContext("2d");
    const style = getComputedStyle(input);
    context.font = `${style.fontWeight} ${style.fontSize} ${style.fontFamily}`;
    const text = input.selectedOptions ? input.selectedOptions[0].text : input.value || input.placeholder;
    const arrow = input.selectedOptions ? 20 : 0;
    const room = input.clientWidth - arrow - parseFloat(style.paddingLeft) - parseFloat(style.paddingRight);
    if (text && context.measureText(text).width > room + 1) found.push(`cut: ${named(text)} in the field ${input.id}`);
  }

  boxes.sort((one, other) => one.left - other.left);
  boxes.forEach((one, n) => {
    for (let m = n + 1; m < boxes.length && boxes[m].left < one.right + 4; m++) {
      const other = boxes[m];
      // words of a picture need some room between them, those of a sentence have it
      const isPicture = one.node.parentElement.closest("svg") && other.node.parentElement.closest("svg");
      if (!isPicture && other.left >= one.right - 1) continue;
      const high = Math.min(one.bottom, other.bottom) - Math.max(one.top, other.top);
      if (one.node !== other.node && high > 4) found.push(`on top of each other: ${named(one.text)} and ${named(other.text)}`);
    }
  });
  return found;
};
