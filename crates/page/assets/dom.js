// Elements, made and kept.

const SVG = "http://www.w3.org/2000/svg";

const set = (node, attributes) => {
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "text") {
      if (node.textContent !== value) node.textContent = value;
    } else if (value === null || value === undefined || value === false) {
      node.removeAttribute(name);
    } else if (node.getAttribute(name) !== String(value)) {
      node.setAttribute(name, value === true ? "" : value);
    }
  }
  return node;
};

/** An element of HTML. */
export const html = (tag, attributes = {}, ...children) => {
  const node = set(document.createElement(tag), attributes);
  node.append(...children);
  return node;
};

/** An element of SVG. */
export const svg = (tag, attributes = {}, ...children) => {
  const node = set(document.createElementNS(SVG, tag), attributes);
  node.append(...children);
  return node;
};

/** Changes attributes, and the text as `text`; null removes one. What is as it should be stays untouched. */
export { set };

/** Properties of CSS: the policy of the page forbids style attributes, not these. */
export const style = (node, properties) => {
  for (const [name, value] of Object.entries(properties)) node.style.setProperty(name, value);
  return node;
};

export const byId = (id) => document.getElementById(id);

/**
 * Keeps one child of `parent` for each item, in the order of the items: elements stay as long as their items do, so what
 * moves in them goes on moving, and the focus stays.
 */
export const keyed = (parent, items, key, create, update) => {
  const before = new Map([...parent.children].map((node) => [node.dataset.key, node]));
  let place = parent.firstElementChild;
  for (const item of items) {
    const name = key(item);
    let node = before.get(name);
    if (node) {
      before.delete(name);
    } else {
      node = create(item);
      node.dataset.key = name;
    }
    update(node, item);
    if (node === place) place = place.nextElementSibling;
    else parent.insertBefore(node, place);
  }
  for (const node of before.values()) node.remove();
};
