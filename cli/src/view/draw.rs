//! Drawing of the live view: what is on the screen follows from the state alone.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Style, Stylize};
use ratatui::symbols::Marker;
use ratatui::text::Line;
use ratatui::widgets::{Axis, Block, Chart, Dataset, GraphType, LegendPosition, LineGauge, Paragraph};
use trefoil_nn::plot::{self, Series};
use trefoil_nn::trainer::charts;

use super::state::{Memory, State};

const COLORS: [Color; 3] = [Color::Cyan, Color::Yellow, Color::Magenta];
/// Name of the curve of single batches.
const BATCHES: &str = "batches";
/// Columns and lines that a chart needs.
const CHART: (u16, u16) = (38, 9);

/// Draws everything.
pub(super) fn draw(frame: &mut Frame<'_>, state: &State) {
    let lines = [1, 1, 1, 1, 0, 1].map(|n| if n == 0 { Constraint::Min(0) } else { Constraint::Length(n) });
    let [title, epoch, all, numbers, curves, keys] = Layout::vertical(lines).areas(frame.area());
    frame.render_widget(Line::from(state.plan.title.as_str()).bold(), title);
    let text =
        format!("epoch {}/{}, step {}/{}", state.epoch, state.plan.epochs, state.step, state.plan.steps);
    gauge(frame, epoch, text, state.of_epoch());
    let left = state.remaining().map_or(String::new(), |s| format!(", {} left", clock(s)));
    gauge(frame, all, format!("all {}{left}", clock(state.seconds)), state.of_all());
    frame.render_widget(Line::from(numbers_of(state)), numbers);
    draw_charts(frame, curves, &charts_of(state));
    let help = "q: close this view, training goes on   Ctrl-C: save and stop";
    frame.render_widget(Paragraph::new(help).dark_gray(), keys);
}

fn gauge(frame: &mut Frame<'_>, area: Rect, text: String, share: f64) {
    let label = format!("{text:<34}{:>4.0} %", 100.0 * share);
    let gauge = LineGauge::default().ratio(share).label(label).filled_symbol("━").unfilled_symbol("─");
    frame.render_widget(
        gauge.filled_style(Style::new().green()).unfilled_style(Style::new().dark_gray()),
        area,
    );
}

/// `1:02:03`, or `2:03`.
fn clock(seconds: f64) -> String {
    let s = seconds.round() as u64;
    match s / 3600 {
        0 => format!("{}:{:02}", s / 60, s % 60),
        h => format!("{h}:{:02}:{:02}", s / 60 % 60, s % 60),
    }
}

fn bytes(n: u64) -> String {
    let x = n as f64;
    match n {
        0..1_048_576 => format!("{:.1} KiB", x / 1024.0),
        1_048_576..1_073_741_824 => format!("{:.1} MiB", x / 1_048_576.0),
        _ => format!("{:.2} GiB", x / 1_073_741_824.0),
    }
}

/// Throughput, learning rate, loss of the last batch, memory.
fn numbers_of(state: &State) -> String {
    let mut all = vec![];
    all.extend(state.throughput().map(|t| format!("{t:.0} items/s")));
    all.push(format!("learning rate {:.2e}", state.lr));
    all.extend(state.loss.map(|l| format!("loss {l:.4}")));
    let Memory { in_use, peak, total } = state.memory;
    let of = if total > 0 { format!(" of {}", bytes(total)) } else { String::new() };
    all.push(format!("memory {}{of}, at most {}", bytes(in_use), bytes(peak)));
    all.join("   ")
}

/// The curves of the run's SVG, with the loss of single batches.
fn charts_of(state: &State) -> Vec<plot::Chart> {
    let mut all = charts(&state.history);
    if all.is_empty() {
        all.push(plot::Chart { title: "loss".into(), x: "epoch".into(), series: vec![], log: false });
    }
    all[0].series.push(Series { name: BATCHES.into(), points: state.batches.clone() });
    all
}

/// As many charts as there is room for, the first ones.
fn draw_charts(frame: &mut Frame<'_>, area: Rect, charts: &[plot::Chart]) {
    let room = |all: u16, one: u16, most: usize| usize::from(all / one).clamp(1, most.max(1));
    let columns = room(area.width, CHART.0, charts.len().min(3));
    let rows = room(area.height, CHART.1, charts.len().div_ceil(columns));
    let split = |n: usize| vec![Constraint::Ratio(1, n as u32); n];
    let mut rest = charts.iter();
    for line in Layout::vertical(split(rows)).split(area).iter() {
        let here = rest.len().min(columns).max(1);
        for (cell, chart) in Layout::horizontal(split(here)).split(*line).iter().zip(rest.by_ref().take(here))
        {
            draw_chart(frame, *cell, chart);
        }
    }
}

/// Smallest and largest, apart.
fn range(values: impl Iterator<Item = f64>) -> [f64; 2] {
    let [lo, hi] = values.fold([f64::INFINITY, f64::NEG_INFINITY], |[lo, hi], v| [lo.min(v), hi.max(v)]);
    match () {
        () if lo > hi => [0.0, 1.0],
        () if lo == hi => [lo - 0.5 * lo.abs().max(1e-6), hi + 0.5 * hi.abs().max(1e-6)],
        () => [lo, hi],
    }
}

/// A number in few letters.
fn label(x: f64) -> String {
    match x.abs() {
        0.0 => "0".into(),
        0.001..1000.0 => format!("{x:.3}"),
        1000.0..1e6 => format!("{x:.0}"),
        _ => format!("{x:.1e}"),
    }
}

fn axis([lo, hi]: [f64; 2], marks: &[f64]) -> Axis<'static> {
    let labels: Vec<String> = marks.iter().map(|m| label(lo + m * (hi - lo))).collect();
    Axis::default().bounds([lo, hi]).labels(labels).style(Style::new().dark_gray())
}

fn draw_chart(frame: &mut Frame<'_>, area: Rect, chart: &plot::Chart) {
    let finite = |s: &Series| -> Vec<(f64, f64)> {
        s.points.iter().copied().filter(|(x, y)| x.is_finite() && y.is_finite()).collect()
    };
    let lines: Vec<(&str, Vec<(f64, f64)>)> =
        chart.series.iter().map(|s| (s.name.as_str(), finite(s))).filter(|(_, p)| !p.is_empty()).collect();
    let all = || lines.iter().flat_map(|(_, points)| points);
    let x = range(all().map(|p| p.0));
    let y = range(all().map(|p| p.1));
    let sets = lines.iter().enumerate().map(|(i, (name, points))| {
        let color = if *name == BATCHES { Color::DarkGray } else { COLORS[i % COLORS.len()] };
        let set = Dataset::default().name(*name).marker(Marker::Braille).graph_type(GraphType::Line);
        set.style(Style::new().fg(color)).data(points)
    });
    // The first is drawn last, over the others.
    let sets: Vec<_> = sets.rev().collect();
    // Where the curves do not end.
    let high = all().max_by(|a, b| a.0.total_cmp(&b.0)).is_some_and(|(_, last)| *last > (y[0] + y[1]) / 2.0);
    let legend = if high { LegendPosition::BottomRight } else { LegendPosition::TopRight };
    let widget = Chart::new(sets)
        .legend_position(Some(legend))
        .hidden_legend_constraints((Constraint::Percentage(60), Constraint::Percentage(80)))
        .block(Block::bordered().title(chart.title.as_str()))
        .x_axis(axis(x, &[0.0, 1.0]))
        .y_axis(axis(y, &[0.0, 0.5, 1.0]));
    frame.render_widget(widget, area);
}
