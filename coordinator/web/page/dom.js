// Elements from code. Text is set as text, attributes one by one; nothing is ever parsed as markup.

const SVG = "http://www.w3.org/2000/svg";

// Attributes beginning with "on" are handlers; null, undefined and false leave an attribute out.
function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element[name] = value;
    else if (name === "style") for (const [key, text] of Object.entries(value)) element.style.setProperty(key, text);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    element.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
  return element;
}

export function h(tag, attributes, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

export function s(tag, attributes, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

const HANDLERS = ["onclick", "oninput", "onchange", "onsubmit", "ontoggle"];

// Makes `target` look like `wanted` and keeps the elements that are alike, so that focus, scrolling and what is typed stay.
// An element with `data-own` looks after its own content: only its first content is taken.
export function morph(target, wanted) {
  const before = [...target.childNodes], after = [...wanted.childNodes];
  after.forEach((fresh, index) => {
    const old = before[index];
    if (!old) target.append(fresh);
    else if (!alike(old, fresh)) old.replaceWith(fresh);
    else if (old.nodeType === Node.TEXT_NODE) {
      if (old.data !== fresh.data) old.data = fresh.data;
    } else update(old, fresh);
  });
  before.slice(after.length).forEach((old) => old.remove());
}

function alike(old, fresh) {
  return old.nodeType === fresh.nodeType && old.nodeName === fresh.nodeName &&
    (old.nodeType !== Node.ELEMENT_NODE || old.getAttribute("data-key") === fresh.getAttribute("data-key"));
}

function update(old, fresh) {
  for (const { name } of [...old.attributes]) {
    if (!fresh.hasAttribute(name) && !(name === "open" && old.nodeName === "DETAILS")) old.removeAttribute(name);
  }
  for (const { name, value } of fresh.attributes) {
    if (old.getAttribute(name) === value) continue;
    if (name === "style") old.style.cssText = fresh.style.cssText;  // as an attribute the policy would refuse it
    else old.setAttribute(name, value);
  }
  for (const name of HANDLERS) if (old[name] !== fresh[name]) old[name] = fresh[name];
  if (!old.hasAttribute("data-own")) morph(old, fresh);
  // What was typed or chosen counts more than the attributes, so it is set anew; not under the hands of who types.
  if (/^(INPUT|SELECT)$/.test(old.nodeName) && old !== document.activeElement && old.value !== fresh.value) old.value = fresh.value;
}
