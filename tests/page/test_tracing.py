"""The page computes what is wanted at the end, whatever is chosen while the model computes."""

from page.serving import STATIC

RUN = """
import { Tracing } from "%s";
import { noEdits } from "%s";
const preprocessing = { fraction: 1, resize: "stretch", antialias: false, interpolation: "bilinear" };
const about = { image: [2, 2], sizes: [[2, 2]], patch: 1, prefix: 0, layers: 0, heads: 0, preprocessing };
const cards = ["a", "b"].map((id) => ({ ...about, id, kind: "answers only" }));
const picture = (id, value) => ({ id, decoded: { width: 2, height: 2, data: new Uint8Array(12).fill(value) } });
const state = { model: "a", other: null, picture: picture("one", 1), size: null, edits: noEdits(4) };
const store = { state, on() {}, set(changes) { Object.assign(state, changes); } };
const traced = [];
const backend = {
  cards,
  async trace(id, pixels) {
    traced.push([id, pixels[0]]);
    const change = changes.shift();
    if (change) { store.set(change.state ?? {}); tracing.refresh(); }
    if (change?.fails) throw new Error("it failed");
    return {};
  },
};
const tracing = new Tracing(backend, store);
const changes = %s;
const running = tracing.refresh();
%s
await running;
process.stdout.write(JSON.stringify([traced, state.status.kind, state.first?.card.id, state.first?.pixels[0]]));
"""


def traced(node, changes, meanwhile=""):
    files = [(STATIC / "inside" / name).as_uri() for name in ("tracing.js", "edits.js")]
    return node(RUN % (*files, changes, meanwhile)).decode()


def test_a_failure_of_what_is_no_longer_wanted_is_not_shown(node):
    changes = '[{ state: { model: "b" }, fails: true }]'
    assert traced(node, changes) == '[[["a",1],["b",1]],"ready","b",1]'


def test_a_failure_of_what_is_wanted_is_shown(node):
    assert traced(node, "[{ fails: true }]") == '[[["a",1]],"error",null,null]'


def test_a_picture_that_is_replaced_before_it_is_computed_is_not_mistaken_for_the_next(node):
    """The first job is of the first picture, although the second was chosen while the page was painted."""
    meanwhile = 'store.set({ picture: picture("two", 2) });'
    assert traced(node, "[]", meanwhile) == '[[["a",1],["a",2]],"ready","a",2]'
