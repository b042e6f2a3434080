"""What ``latecomer simulate`` prints and draws: the modes' steps, and what decides them."""

from __future__ import annotations

from collections.abc import Sequence

from latecomer.runtime.simulation.comparison import Comparison, ModeResult
from latecomer.synth.units import format_bandwidth, format_bytes, format_seconds
from latecomer.verify.report.svg import page, words

HEADER = ("mode", "s/step", "median", "of native", "started early", "messages", "mostly because")
WORTH = 0.01  # of a step: what is less than that is called nothing

BAR = 22  # pixels: the height of a row
LEFT = 90
WIDTH = 560
TOP = 60
PARTS = (
    ("computing, until the first rank is ready", "#9aa7b4"),
    ("waiting for the last rank", "#d9a441"),
    ("the all-reduce after that", "#3f7fbf"),
)


def as_text(comparison: Comparison) -> str:
    """The table, and the sentences."""
    rows: list[tuple[str, ...]] = [HEADER]
    rows += [_row(comparison, result) for result in comparison.results]
    lines = [_title(comparison), "", *in_columns(rows)]
    return "\n".join([*lines, "", *_sentences(comparison)])


def in_columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """A line for each row, of which the first cell is at the left and the last as long as it is."""
    widths = []
    for column in range(len(rows[0]) - 1):
        widths.append(max(len(row[column]) for row in rows))
    lines = []
    for row in rows:
        cells = [cell.rjust(width) for cell, width in zip(row, widths, strict=False)]
        cells[0] = row[0].ljust(widths[0])
        lines.append("  ".join([*cells, row[-1]]))
    return lines


def _title(comparison: Comparison) -> str:
    setting = comparison.setting
    work = setting.work
    ranks = comparison.setting.ranks
    bucket = "bucket" if work.buckets == 1 else "buckets"
    return (
        f"{ranks} ranks, {work.buckets} {bucket} of {format_bytes(work.nbytes)}, "
        f"{format_bandwidth(setting.bandwidth)}, {format_seconds(setting.latency_s)}; "
        f"{setting.steps} steps, seed {setting.seed}\narrivals: {comparison.setting.text}"
    )


def _row(comparison: Comparison, result: ModeResult) -> tuple[str, ...]:
    figures = result.figures
    return (
        result.mode,
        f"{result.step_s:.4g}",
        f"{result.median_s:.4g}",
        f"{result.step_s / comparison.native.step_s:.3f}",
        f"{figures.early / figures.operations:.0%}",
        f"{figures.messages / figures.operations:.1f}",
        result.reason,
    )


def _sentences(comparison: Comparison) -> list[str]:
    setting = comparison.setting
    buckets = setting.work.buckets
    native = comparison.native
    share = buckets * comparison.ceiling_s / native.step_s
    compute = format_seconds(comparison.compute_s)
    wait = format_seconds(comparison.wait_s)
    ceiling = format_seconds(comparison.ceiling_s)
    lines = [
        f"On average the first rank is ready after {compute}, and the last one {wait} later.",
        f"An all-reduce takes {format_seconds(comparison.native_s)} natively. Of that a schedule "
        f"for one late rank saves {ceiling} at best: {share:.2%} of a step.",
    ]
    best = min(comparison.results, key=lambda result: result.step_s)
    saved_s = native.step_s - best.step_s
    if saved_s < WORTH * native.step_s:
        lines.append("No mode saves a hundredth of a step.")
        if comparison.wait_s > native.step_s * WORTH:
            lines.append("What the ranks wait for each other, no all-reduce can return.")
    else:
        saved = f"{format_seconds(saved_s)} a step, {saved_s / native.step_s:.1%}"
        lines.append(f"Mode {best.mode} saves most: {saved}.")
    lines += [_named(result) for result in comparison.results if result.late]
    return lines


def _named(result: ModeResult) -> str:
    names = ", ".join(map(str, result.late))
    return f"Mode static is told that rank {names} is late, which is last most often."


def as_picture(comparison: Comparison) -> str:
    """An SVG file: of each mode's average step what is computing, waiting, and all-reduce."""
    longest_s = max(result.step_s for result in comparison.results)
    scale = WIDTH / longest_s
    body = [words(LEFT, 20, _title(comparison).partition("\n")[0], size=12, bold=True)]
    body.append(words(LEFT, 36, f"arrivals: {comparison.setting.text}"))
    for number, result in enumerate(comparison.results):
        y = TOP + number * (BAR + 8)
        body.append(words(LEFT - 8, y + 15, result.mode, anchor="end"))
        lengths_s = (
            comparison.compute_s,
            comparison.wait_s,
            result.step_s - comparison.compute_s - comparison.wait_s,
        )
        x = float(LEFT)
        for (_, colour), length_s in zip(PARTS, lengths_s, strict=True):
            width = max(0.0, length_s * scale)
            rectangle = f'x="{x:.1f}" y="{y}" width="{width:.1f}" height="{BAR}"'
            body.append(f'<rect {rectangle} fill="{colour}"/>')
            x += width
        body.append(words(x + 6, y + 15, format_seconds(result.step_s)))

    y = TOP + len(comparison.results) * (BAR + 8) + 10
    for number, (text, colour) in enumerate(PARTS):
        top = y + number * 18
        body.append(f'<rect x="{LEFT}" y="{top}" width="12" height="12" fill="{colour}"/>')
        body.append(words(LEFT + 18, top + 10, text))
    return page(LEFT + WIDTH + 90, y + len(PARTS) * 18 + 10, body)
