// Looks at the page in a browser as a person would. Each step that needs something of the cluster is asked for with a line
// on stdout, and begins with a line on stdin: see deploy/tests/tests/page.
//
//   node page.mjs URL DIRECTORY_FOR_IMAGES

import assert from "node:assert/strict";
import { createInterface } from "node:readline";
import { chromium } from "playwright-core";

const [url, images] = process.argv.slice(2);
/** Patience with what takes a controller's time constants on a busy machine. */
const SETTLED = 90_000;
const WIDE = { width: 1440, height: 900 };
const PHONE = { width: 390, height: 844 };

const answers = createInterface({ input: process.stdin })[Symbol.asyncIterator]();

/** Asks the cluster for something, and waits until it is so. */
const ask = async (what) => {
  console.log(what);
  const { done } = await answers.next();
  assert.ok(!done, `nobody brings ${what}`);
};

const browser = await chromium.launch({
  executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium",
  // Its sandbox wants a user who is not root.
  args: ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"],
});
const context = await browser.newContext({ viewport: WIDE, colorScheme: "light", deviceScaleFactor: 2 });
const page = await context.newPage();
page.setDefaultTimeout(SETTLED);
const complaints = [];
page.on("console", (message) => {
  if (["error", "warning"].includes(message.type())) complaints.push(message.text());
});
page.on("pageerror", (error) => complaints.push(String(error)));

process.on("uncaughtException", async (error) => {
  console.error(error, complaints);
  await page.screenshot({ path: new URL("failure.png", import.meta.url).pathname, fullPage: true }).catch(() => {});
  process.exit(1);
});

const told = (selector) => page.locator(selector).innerText();
const shown = (selector) => page.locator(selector).first().waitFor({ state: "attached" });

// It loads, with all nodes and their levels.
await page.goto(url);
await shown('#live[data-state="live"]');
await page.waitForFunction(() => document.querySelectorAll(".basin").length === 4);
await page.waitForFunction(() =>
  [...document.querySelectorAll(".basin .level")].every(({ textContent }) => /\d %/.test(textContent)),
);
assert.match(await told("#where"), /as node1 sees it/);
assert.equal(await page.locator('.basin[data-state="here"]').count(), 1);

// A service is found by its name and picked with the keyboard.
await page.locator('#list li[data-key="shop/web"]').waitFor();
await page.keyboard.press("Tab");
await page.locator("#filter").fill("web");
await page.locator("#filter").press("Enter");
await shown(".endpoints li");
assert.equal(await told("#detail-title"), "shop/web");
assert.equal(new URL(page.url()).hash, "#service=shop%2Fweb");
assert.equal(await page.locator('#list button[aria-pressed="true"]').count(), 1);
assert.ok((await page.locator(".endpoints li").count()) >= 6);
assert.ok((await page.locator(".reasons li").count()) >= 1);
await page.locator("#filter").fill("");

// Below its level everything stays.
await ask("calm");
await page.waitForFunction(() => document.querySelectorAll(".stream.out").length === 0);

// Above it, what flows over becomes visible, as a flow, as a sentence, and among the shares.
await ask("load");
await shown(".stream.out");
await page.waitForFunction(() => /flow over: node\d/.test(document.querySelector("#summary").textContent));
await page.waitForFunction(() =>
  [...document.querySelectorAll(".endpoints .remote .share")].some(({ textContent }) =>
    /^[1-9]\d* %$/.test(textContent),
  ),
);
const width = await page
  .locator(".stream.out .body")
  .first()
  .evaluate((path) => parseFloat(path.style.strokeWidth));
assert.ok(width >= 2, `a flow is ${width} wide`);

// A node is picked with the keyboard, and the charts are about it.
const second = page.locator('.basin[data-node="node2"]');
await second.focus();
await page.keyboard.press("Enter");
assert.match(await told("#past-title"), /of node2/);
assert.equal(await second.getAttribute("aria-pressed"), "true");
assert.match(await second.getAttribute("aria-label"), /^node2, CPU \d+ %/);
await page.keyboard.press("Escape");
assert.match(await told("#past-title"), /of node1/);

// Charts can be read without a pointer.
const chart = page.locator('svg[data-chart="flows"]');
await chart.focus();
for (let step = 0; step < 5; step += 1) await page.keyboard.press("ArrowLeft");
assert.match(await page.locator("figure", { has: chart }).locator("output").innerText(), /, 10 s ago$/);
await page.locator("#filter").focus();

// The address of the page keeps what was picked.
await page.goto(`${url}#service=shop/web`);
await page.reload();
await shown(".endpoints li");

// Light and dark follow the system, and the switch.
const ground = () => page.evaluate(() => getComputedStyle(document.body).backgroundColor);
const light = await ground();
await page.emulateMedia({ colorScheme: "dark" });
const dark = await ground();
assert.notEqual(light, dark);
await page.locator("#theme").click();
assert.equal(await ground(), light, "the switch says light");
await page.locator("#theme").click();
assert.equal(await ground(), dark, "the switch says dark");
await page.reload();
assert.equal(await ground(), dark, "and is remembered");
await page.locator("#theme").click();
await page.emulateMedia({ colorScheme: "light" });

// Who wants no motion gets none.
const moves = () => page.evaluate(() => getComputedStyle(document.querySelector(".wave")).animationName);
await shown(".wave");
assert.equal(await moves(), "drift");
await page.emulateMedia({ colorScheme: "light", reducedMotion: "reduce" });
assert.equal(await moves(), "none");
await page.emulateMedia({ colorScheme: "light", reducedMotion: "no-preference" });

// Pictures, and a phone.
await ask("picture");
await shown(".stream.out");
await page.waitForTimeout(2500);
await page.screenshot({ path: `${images}/page.png`, fullPage: true });
await page.emulateMedia({ colorScheme: "dark" });
await page.waitForTimeout(500);
await page.screenshot({ path: `${images}/page-dark.png`, fullPage: true });
await page.setViewportSize(PHONE);
await page.waitForTimeout(2500);
const overflow = await page.evaluate(() => document.documentElement.scrollWidth - document.documentElement.clientWidth);
assert.ok(overflow <= 0, `${overflow} pixels too wide for a phone`);
await page.screenshot({ path: new URL("page-phone.png", import.meta.url).pathname, fullPage: true });
await page.setViewportSize(WIDE);

assert.deepEqual(complaints, []);

// An agent that goes is noticed, and one that comes back is followed, without a reload.
await ask("stop");
await page.locator('#live:not([data-state="live"])').waitFor();
await ask("start");
await shown('#live[data-state="live"]');

await browser.close();
console.log("done");
process.exit(0);
