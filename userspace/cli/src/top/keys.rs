//! What keys do to `weir top`.

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use super::model::Sort;

/// What the user has chosen to see.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(crate) struct Choices {
    pub(crate) sort: Sort,
    pub(crate) reversed: bool,
    /// Text that services must have in their names.
    pub(crate) filter: String,
    /// Whether the filter is being written: keys are letters then.
    pub(crate) typing: bool,
    /// Whether the picture stands still.
    pub(crate) paused: bool,
    /// Whether the keys are explained.
    pub(crate) help: bool,
    /// Services above the first one that is shown.
    pub(crate) scroll: usize,
}

/// Whether it goes on.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Next {
    Go,
    Quit,
}

/// Longest filter: a name of Kubernetes with its namespace.
const FILTER_LIMIT: usize = 128;
/// Services that a page key moves by.
const PAGE: usize = 10;

/// What `?` shows, with the first letters of each line as the keys.
pub(crate) const HELP: [(&str, &str); 13] = [
    ("f", "most new flows first"),
    ("l", "those that leave this node most first"),
    ("o", "most open flows first"),
    ("e", "most failures first"),
    ("n", "by name"),
    ("r", "the other way round"),
    ("/", "only services whose name has a text; Enter keeps it, Esc drops it"),
    ("up, down, PgUp, PgDn", "move in the list of services"),
    ("Home", "to its beginning"),
    ("space", "pause, go on"),
    ("?", "this help"),
    ("Esc", "leave help, drop the filter"),
    ("q, Ctrl-C", "quit"),
];

impl Choices {
    /// A key was pressed.
    pub(crate) fn press(&mut self, key: KeyEvent) -> Next {
        if key.modifiers.contains(KeyModifiers::CONTROL) {
            return if key.code == KeyCode::Char('c') { Next::Quit } else { Next::Go };
        }
        if self.typing { self.edit(key.code) } else { self.command(key.code) }
    }

    fn edit(&mut self, key: KeyCode) -> Next {
        self.scroll = 0;
        match key {
            KeyCode::Enter => self.typing = false,
            KeyCode::Esc => (self.typing, self.filter) = (false, String::new()),
            KeyCode::Backspace => drop(self.filter.pop()),
            KeyCode::Char(letter) if self.filter.len() < FILTER_LIMIT => self.filter.push(letter),
            _ => {}
        }
        Next::Go
    }

    fn command(&mut self, key: KeyCode) -> Next {
        match key {
            KeyCode::Char('q') => return Next::Quit,
            KeyCode::Char('f') => self.sort_by(Sort::Flows),
            KeyCode::Char('l') => self.sort_by(Sort::Local),
            KeyCode::Char('o') => self.sort_by(Sort::Open),
            KeyCode::Char('e') => self.sort_by(Sort::Failed),
            KeyCode::Char('n') => self.sort_by(Sort::Name),
            KeyCode::Char('r') => self.reversed = !self.reversed,
            KeyCode::Char('/') => self.typing = true,
            KeyCode::Char(' ') => self.paused = !self.paused,
            KeyCode::Char('?') => self.help = !self.help,
            KeyCode::Esc if self.help => self.help = false,
            KeyCode::Esc => self.filter.clear(),
            KeyCode::Up => self.scroll = self.scroll.saturating_sub(1),
            KeyCode::Down => self.scroll += 1,
            KeyCode::PageUp => self.scroll = self.scroll.saturating_sub(PAGE),
            KeyCode::PageDown => self.scroll += PAGE,
            KeyCode::Home => self.scroll = 0,
            _ => {}
        }
        Next::Go
    }

    fn sort_by(&mut self, sort: Sort) {
        (self.sort, self.reversed, self.scroll) = (sort, false, 0);
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// The keys of a text.
    pub(crate) fn typed(choices: &mut Choices, text: &str) -> Next {
        let press = |letter| choices.press(KeyEvent::new(KeyCode::Char(letter), KeyModifiers::NONE));
        text.chars().map(press).last().unwrap_or(Next::Go)
    }

    fn pressed(choices: &mut Choices, code: KeyCode) -> Next {
        choices.press(KeyEvent::new(code, KeyModifiers::NONE))
    }

    #[test]
    fn each_sort_key_chooses_and_r_turns_round() {
        for (key, sort) in
            [("f", Sort::Flows), ("l", Sort::Local), ("o", Sort::Open), ("e", Sort::Failed), ("n", Sort::Name)]
        {
            let mut choices = Choices { reversed: true, scroll: 5, ..Choices::default() };
            typed(&mut choices, key);
            assert_eq!(choices, Choices { sort, ..Choices::default() });
            typed(&mut choices, "r");
            assert!(choices.reversed);
        }
    }

    #[test]
    fn a_filter_takes_letters_until_enter_and_escape_drops_it() {
        let mut choices = Choices::default();
        typed(&mut choices, "/quit");
        assert_eq!((choices.filter.as_str(), choices.typing), ("quit", true), "q is a letter here");
        pressed(&mut choices, KeyCode::Backspace);
        pressed(&mut choices, KeyCode::Enter);
        assert_eq!((choices.filter.as_str(), choices.typing), ("qui", false));
        pressed(&mut choices, KeyCode::Esc);
        assert_eq!(choices, Choices::default());
        typed(&mut choices, &format!("/{}", "x".repeat(1000)));
        assert_eq!(choices.filter.len(), FILTER_LIMIT);
        pressed(&mut choices, KeyCode::Esc);
        assert_eq!(choices, Choices::default());
    }

    #[test]
    fn pause_and_help_come_and_go_and_scrolling_ends_at_the_top() {
        let mut choices = Choices::default();
        typed(&mut choices, " ?");
        assert!(choices.paused && choices.help);
        pressed(&mut choices, KeyCode::Esc);
        typed(&mut choices, " ");
        assert!(!choices.paused && !choices.help);
        pressed(&mut choices, KeyCode::PageDown);
        pressed(&mut choices, KeyCode::Down);
        assert_eq!(choices.scroll, PAGE + 1);
        pressed(&mut choices, KeyCode::PageUp);
        pressed(&mut choices, KeyCode::Up);
        pressed(&mut choices, KeyCode::Up);
        assert_eq!(choices.scroll, 0);
    }

    #[test]
    fn q_and_ctrl_c_quit_and_ctrl_c_does_so_in_a_filter_too() {
        let control_c = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
        assert_eq!(typed(&mut Choices::default(), "q"), Next::Quit);
        assert_eq!(Choices::default().press(control_c), Next::Quit);
        let mut typing = Choices { typing: true, ..Choices::default() };
        assert_eq!(typing.press(control_c), Next::Quit);
    }
}
