// What a test asks of a page that is open: what can be reached, what is written on what, what it says.
"use strict";

// All that whoever has a keyboard alone has to reach, in the order of the document.
function controls() {
  const every = document.querySelectorAll("a[href], button, summary, input, select, [tabindex='0']");
  return [...every].filter(one => one.checkVisibility()).map(called);
}

function called(one) {
  const same = [...document.querySelectorAll(one.tagName)];
  return one === document.body ? "" : one.tagName.toLowerCase() + " " + same.indexOf(one);
}

function focused() {
  const {outlineStyle, outlineWidth} = getComputedStyle(document.activeElement);
  return {called: called(document.activeElement),
          seen: outlineStyle !== "none" && parseFloat(outlineWidth) >= 2};
}

function parts(colour) {
  const found = colour.match(/[\d.]+/g).map(Number);
  return found.length === 3 ? [...found, 1] : found;
}

function over([r, g, b, a], [R, G, B]) {
  return [r * a + R * (1 - a), g * a + G * (1 - a), b * a + B * (1 - a), 1];
}

// As WCAG 2 has it.
function light([r, g, b]) {
  const [x, y, z] = [r, g, b].map(v => v / 255).map(v =>
    v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
  return 0.2126 * x + 0.7152 * y + 0.0722 * z;
}

function ground(one) {
  const below = one.parentElement ? ground(one.parentElement) : [255, 255, 255, 1];
  return over(parts(getComputedStyle(one).backgroundColor), below);
}

// Of every text that is seen, how far it stands from what it is written on.
function contrasts() {
  const found = [], walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const text = walker.currentNode.textContent.trim(), one = walker.currentNode.parentElement;
    if (!text || ["SCRIPT", "STYLE", "NOSCRIPT"].includes(one.tagName) || !one.checkVisibility())
      continue;
    const {color, fill} = getComputedStyle(one), back = ground(one);
    const drawn = one instanceof SVGElement ? fill : color;
    const [a, b] = [light(over(parts(drawn), back)), light(back)];
    found.push([text, (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05)]);
  }
  return found;
}

// From now on, how often something is said to whoever listens.
function listen() {
  window.saidAloud = [];
  const watch = new MutationObserver(many => many.forEach(one => {
    const live = one.target.parentElement?.closest("[aria-live], [role=status], output")
      ?? one.target.closest?.("[aria-live], [role=status], output");
    if (live) window.saidAloud.push(live.textContent);
  }));
  watch.observe(document.body, {subtree: true, childList: true, characterData: true});
}

// What would move by itself.
function moving() {
  return [...document.querySelectorAll("*")].filter(one => {
    const {transitionDuration, animationDuration, scrollBehavior} = getComputedStyle(one);
    return [transitionDuration, animationDuration].some(of =>
      of.split(",").some(part => parseFloat(part) > 0)) || scrollBehavior === "smooth";
  }).map(called);
}

// What is further right than it may be; what lies in a box that scrolls may be.
function beyond(pixels) {
  return [...document.querySelectorAll("body *")].filter(one => !one.closest(".scroll, svg") &&
    one.checkVisibility() && one.getBoundingClientRect().right > pixels + 1).map(called);
}
