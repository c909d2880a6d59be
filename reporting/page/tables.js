"use strict";
// Tables sort by a click on a column's title and narrow to rows that contain what is typed.
// Without this script they are the same tables in the order of the report.
(() => {
  const orderOf = (cell) => {
    if (cell.dataset.order !== undefined) return Number(cell.dataset.order);
    return cell.classList.contains("n") ? null : cell.textContent.trim();
  };

  // What isn't known comes last in both directions.
  const compare = (a, b, sign) => {
    if (a === null || b === null) return (a === null) - (b === null);
    if (typeof a === "number" && typeof b === "number") return sign * (a - b);
    return sign * String(a).localeCompare(String(b), "en", { numeric: true });
  };

  const sort = (table, head, index) => {
    const rising = head.getAttribute("aria-sort") === "none"
      ? !head.classList.contains("n")
      : head.getAttribute("aria-sort") === "descending";
    for (const other of table.tHead.rows[0].cells) other.setAttribute("aria-sort", "none");
    head.setAttribute("aria-sort", rising ? "ascending" : "descending");
    const body = table.tBodies[0];
    const rows = [...body.rows].map((row) => [orderOf(row.cells[index]), row]);
    rows.sort((a, b) => compare(a[0], b[0], rising ? 1 : -1));
    body.append(...rows.map(([, row]) => row));
  };

  const makeSortable = (table) => {
    [...table.tHead.rows[0].cells].forEach((head, index) => {
      const button = document.createElement("button");
      button.type = "button";
      button.append(...head.childNodes);
      button.addEventListener("click", () => sort(table, head, index));
      head.setAttribute("aria-sort", "none");
      head.append(button);
    });
  };

  const makeNarrowable = (table) => {
    const rows = [...table.tBodies[0].rows];
    if (rows.length < 8) return;
    const label = document.createElement("label");
    const field = document.createElement("input");
    const found = document.createElement("output");
    label.className = "filter";
    field.type = "search";
    field.setAttribute("aria-controls", table.id);
    label.append("Show rows with ", field);
    label.append(" ", found);
    const texts = rows.map((row) => row.textContent.toLowerCase());
    const narrow = () => {
      const words = field.value.toLowerCase().split(/\s+/).filter(Boolean);
      let shown = 0;
      rows.forEach((row, index) => {
        row.hidden = !words.every((word) => texts[index].includes(word));
        shown += !row.hidden;
      });
      found.textContent = words.length ? `${shown} of ${rows.length}` : "";
    };
    field.addEventListener("input", narrow);
    table.closest(".scroll").before(label);
  };

  for (const table of document.querySelectorAll("table.sortable")) {
    makeSortable(table);
    makeNarrowable(table);
  }
})();
