//! What is drawn on terminals of several sizes, and the picture of it in the documentation.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::buffer::{Buffer, Cell};
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use ratatui::style::{Color, Modifier};

use super::example;
use super::keys::Choices;
use super::keys::tests::typed;
use super::model::{Board, board};
use super::sample::Sample;
use super::screen::Picture;

fn busy() -> Board {
    board(Some(&example::sample(0)), &example::sample(2))
}

fn buffer((width, height): (u16, u16), picture: &Picture<'_>) -> Buffer {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| picture.draw(frame)).unwrap();
    terminal.backend().buffer().clone()
}

/// What is drawn, as text.
fn drawn(size: (u16, u16), board: &Board, choices: &Choices) -> String {
    let buffer = buffer(size, &Picture { board, choices, trouble: None, colored: false });
    let rows = buffer.content.chunks(usize::from(size.0));
    let text = |row: &[Cell]| row.iter().map(Cell::symbol).collect::<String>().trim_end().to_owned();
    rows.map(text).collect::<Vec<_>>().join("\n")
}

#[test]
fn a_usual_terminal_shows_nodes_services_and_reasons() {
    insta::assert_snapshot!(drawn((100, 20), &busy(), &Choices::default()), @r"
    edge-1  3 nodes, 3 service ports, 80.0 flows/s, 12.5 % spilled, 12 open, 2.5 failed/s
    NODE                    LEVEL                 LEVEL%    FLOWS/S  SHARE%    CPU%       RTT
    edge-1                  ████████████████          80       72.0      90      80         -  this node
    edge-2                  █████                     25        8.0      10      25     0.8ms
    edge-3                  █████                     25        0.0       0      25    12.0ms  silent

    SERVICE                              PORT           FLOWS/S*   LOCAL%     OPEN   FAILED/S  ENDPOINTS
    shop/web                             80/TCP             80.0     87.5       12        2.5        1/3
    default/dns                          53/UDP              0.0        -        0        0.0        0/0
    shop/web                             80/TCP v6           0.0        -        0        0.0        0/1





    REASON                                                           VERDICT     PACKETS/S       PACKETS
    no_route                                                         dropped          10.0            27
    no_endpoints                                                     answered          0.0           400

    q quit  ? help  space pause  / filter  sort: f l o e n  r reverse
    ");
}

#[test]
fn a_small_terminal_shows_services_and_as_many_columns_as_there_is_room_for() {
    insta::assert_snapshot!(drawn((44, 8), &busy(), &Choices::default()), @r"
    edge-1  3 nodes, 3 service ports, 80.0 flows
    NODE                    LEVEL
    edge-1                  ████████████████
    SERVICE              PORT           FLOWS/S*
    shop/web             80/TCP             80.0
    default/dns          53/UDP              0.0

    q quit  ? help  space pause  / filter  sort:
    ");
}

#[test]
fn a_terminal_of_one_cell_is_no_reason_to_fail() {
    for size in [(1, 1), (2, 3), (200, 2), (3, 60)] {
        drawn(size, &busy(), &Choices { help: true, ..Choices::default() });
        drawn(size, &busy(), &Choices::default());
    }
}

#[test]
fn without_an_agent_it_says_so_and_shows_what_the_maps_know() {
    let silent = |seconds| {
        let agent = Err("no weir-agent listens at /run/weir/agent.sock".to_owned());
        Sample { agent, ..example::sample(seconds) }
    };
    let board = board(Some(&silent(0)), &silent(2));
    insta::assert_snapshot!(drawn((100, 12), &board, &Choices::default()), @r"
    edge-1  2 nodes, 3 service ports, 80.0 flows/s, 12.5 % spilled, 12 open, 2.5 failed/s
    from the maps alone, without load and delays: no weir-agent listens at /run/weir/agent.sock
    NODE                    LEVEL                 LEVEL%    FLOWS/S  SHARE%    CPU%       RTT
    edge-1                                             -       72.0      90       -         -  this node
    edge-2                                             -        8.0      10       -         -

    SERVICE                              PORT           FLOWS/S*   LOCAL%     OPEN   FAILED/S  ENDPOINTS
    shop/web                             80/TCP             80.0     87.5       12        2.5        1/3
    default/dns                          53/UDP              0.0        -        0        0.0        0/0
    shop/web                             80/TCP v6           0.0        -        0        0.0        0/1

    q quit  ? help  space pause  / filter  sort: f l o e n  r reverse
    ");
}

#[test]
fn an_empty_node_is_not_an_empty_screen() {
    let empty = Board { here: Some("edge-1".to_owned()), ..Board::default() };
    insta::assert_snapshot!(drawn((80, 4), &empty, &Choices::default()), @r"
    edge-1  0 nodes, 0 service ports, - flows/s, - % spilled, 0 open, - failed/s
    no services on this node

    q quit  ? help  space pause  / filter  sort: f l o e n  r reverse
    ");
}

#[test]
fn maps_that_cannot_be_read_leave_the_last_picture_with_a_word() {
    let (board, choices) = (busy(), Choices::default());
    let trouble = Some("no pinned maps in /sys/fs/bpf/weir");
    let buffer = buffer((60, 6), &Picture { board: &board, choices: &choices, trouble, colored: false });
    let second: String = buffer.content[60..120].iter().map(Cell::symbol).collect();
    assert!(second.starts_with("what you see is old: no pinned maps in /sys"), "{second}");
}

#[test]
fn the_filter_the_pause_and_the_help_are_seen() {
    let mut choices = Choices::default();
    typed(&mut choices, "n /dns");
    insta::assert_snapshot!(drawn((80, 8), &busy(), &choices), @r"
    edge-1  3 nodes, 3 service ports, 80.0 flows/s, 12.5 % spilled, 12 open, 2.5 fai
    NODE                     LEVEL                 LEVEL%    FLOWS/S  SHARE%    CPU%
    edge-1                   ████████████████          80       72.0      90      80
    SERVICE*                    PORT            FLOWS/S   LOCAL%     OPEN   FAILED/S
    default/dns                 53/UDP              0.0        -        0        0.0


    filter: dns_  q quit  ? help  space pause  / filter  sort: f l o e n  r reverse
    ");
    choices.press(KeyEvent::new(KeyCode::Enter, KeyModifiers::NONE));
    typed(&mut choices, "?");
    insta::assert_snapshot!(drawn((80, 18), &busy(), &choices), @r"
    nodes     LEVEL%: CPU or network in use, whichever is more. FLOWS/S, SHARE%:
              new flows of this node that go there; at other nodes they are spill
    services  LOCAL%: new flows that stayed here. FAILED/S: flows that were refused,
              dropped or not answered. ENDPOINTS: here, and all

      f                     most new flows first
      l                     those that leave this node most first
      o                     most open flows first
      e                     most failures first
      n                     by name
      r                     the other way round
      /                     only services whose name has a text; Enter keeps it, Esc
      up, down, PgUp, PgDn  move in the list of services
      Home                  to its beginning
      space                 pause, go on
      ?                     this help
      Esc                   leave help, drop the filter
      q, Ctrl-C             quit
    ");
}

#[test]
fn a_list_that_is_longer_than_the_screen_moves_and_stops_at_its_end() {
    let mut board = busy();
    let first = board.services[0].clone();
    board.services = (0..30)
        .map(|number| super::model::ServiceRow { name: format!("shop/web-{number:02}"), ..first.clone() })
        .collect();
    let shown = |scroll| drawn((60, 20), &board, &Choices { scroll, ..Choices::default() });
    assert!(shown(0).contains("web-00") && !shown(0).contains("web-29"), "{}", shown(0));
    assert!(!shown(3).contains("web-02") && shown(3).contains("web-03"), "{}", shown(3));
    assert!(shown(1000).contains("web-29") && shown(1000).contains("web-28"), "{}", shown(1000));
}

#[test]
fn there_is_no_colour_where_none_is_wanted() {
    let (board, choices) = (busy(), Choices::default());
    let colors = |colored| {
        let buffer = buffer((100, 20), &Picture { board: &board, choices: &choices, trouble: None, colored });
        buffer.content.iter().filter(|cell| cell.fg != Color::Reset || cell.bg != Color::Reset).count()
    };
    assert_eq!(colors(false), 0);
    assert!(colors(true) > 0);
}

/// A terminal as a picture that needs nothing from elsewhere.
fn svg(buffer: &Buffer) -> String {
    const CELL: (u16, u16) = (8, 17);
    let (width, height) = (buffer.area.width * CELL.0 + 16, buffer.area.height * CELL.1 + 16);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" \
         font-family=\"ui-monospace,monospace\" font-size=\"13\">\n<title>weir top</title>\n\
         <rect width=\"100%\" height=\"100%\" rx=\"6\" fill=\"#16181d\"/>\n"
    );
    for (y, row) in (0u16..).zip(buffer.content.chunks(usize::from(buffer.area.width))) {
        let mut x = 0u16;
        for run in row.chunk_by(|a, b| (a.fg, a.modifier) == (b.fg, b.modifier)) {
            let text: String = run.iter().map(Cell::symbol).collect();
            let cells = u16::try_from(run.len()).unwrap();
            if !text.trim().is_empty() {
                let fill = match run[0].fg {
                    Color::Green => "#6cc070",
                    Color::Yellow => "#e0b445",
                    Color::Red => "#ef6b73",
                    _ => "#d6d9e0",
                };
                let bold = if run[0].modifier.contains(Modifier::BOLD) { " font-weight=\"bold\"" } else { "" };
                let (left, top) = (8 + x * CELL.0, 8 + y * CELL.1 + 13);
                let text = text.replace('&', "&amp;").replace('<', "&lt;");
                writeln!(
                    svg,
                    "<text x=\"{left}\" y=\"{top}\" textLength=\"{}\" fill=\"{fill}\"{bold} xml:space=\"preserve\">{text}</text>",
                    cells * CELL.0
                )
                .unwrap();
            }
            x += cells;
        }
    }
    svg + "</svg>\n"
}

#[test]
fn the_picture_in_the_documentation_is_what_is_drawn() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/images/top.svg");
    let (board, choices) = (busy(), Choices::default());
    let picture = Picture { board: &board, choices: &choices, trouble: None, colored: true };
    let expected = svg(&buffer((100, 16), &picture));
    if std::env::var_os("WEIR_WRITE_DOCS").is_some() {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, expected).unwrap();
        return;
    }
    assert!(
        fs::read_to_string(&path).is_ok_and(|written| written == expected),
        "docs/images/top.svg is out of date: WEIR_WRITE_DOCS=1 cargo test -p weir-cli --bin weir drawn"
    );
}
