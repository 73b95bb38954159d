// The cells of a session as a tree: each line that was undone begins below the cell after which it ran.

/**
 * Return cells in the order in which they are shown: {cell, place, depth, begins}. `place` is a cell's place in time. The line that
 * leads to the present state has the depth 0. `begins` is set where a line of undone cells begins, to {after, count}.
 */
export function treeOf(cells) {
  const known = new Set(cells.map((cell) => cell.id));
  const below = new Map([["", []]]);
  cells.forEach((cell, place) => {
    const parent = known.has(cell.after) ? cell.after : "";
    if (!below.has(parent)) below.set(parent, []);
    below.get(parent).push({ cell, place });
  });
  const shown = [];
  // What is to be shown next is last. There may be a thousand cells below each other: hence no function that calls itself.
  const open = [];
  const add = (parent, depth) => {
    const children = below.get(parent?.id ?? "") ?? [];
    // An undone line goes on with what ran last in it; the present one with what was not undone.
    const goesOn = parent?.abandoned ? children.slice(-1) : children.filter(({ cell }) => !cell.abandoned);
    const ordered = parent ? [...children.filter((one) => !goesOn.includes(one)), ...goesOn] : children;
    for (const one of ordered.reverse()) {
      const begins = !goesOn.includes(one);
      open.push({ ...one, depth: depth + Number(begins), begins: begins ? { after: parent?.execution_count ?? null, count: 0 } : null });
    }
  };
  add(null, 0);
  let line = [];
  while (open.length) {
    const one = open.pop();
    line = line.slice(0, one.depth + 1);
    if (one.begins) line[one.depth] = one.begins;
    if (one.depth > 0) line[one.depth].count += 1;
    shown.push(one);
    add(one.cell, one.depth);
  }
  return shown;
}
