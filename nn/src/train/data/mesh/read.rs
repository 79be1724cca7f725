//! Vertices and triangles of OBJ and OFF files.

use std::path::Path;
use std::str::SplitWhitespace;

use crate::core::error::{At, NnError, Result};
use crate::core::limits;

/// A mesh of triangles as a file has it: positions of its vertices, and three vertices, from 0, for each face.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct MeshFile {
    /// Positions of the vertices.
    pub positions: Vec<[f64; 3]>,
    /// Corners of the faces.
    pub faces: Vec<[usize; 3]>,
}

/// Reads a mesh of triangles, whose format the end of its name says: `.obj` (Wavefront; its statements `v` and `f` are read, numbers behind the
/// first one of a corner and behind the third one of a position are not) or `.off` (Object File Format; colours are not read). Vertices of no face
/// are kept. Errors: [`NnError::Io`]; [`NnError::Data`] with the line of what is no number, no triangle or no vertex.
pub fn read_mesh(path: impl AsRef<Path>) -> Result<MeshFile> {
    let path = path.as_ref();
    let text = limits::read_text(path, limits::TEXT_BYTES)?;
    let mesh = match format(path) {
        Some(Format::Obj) => obj(path, &text)?,
        Some(Format::Off) => off(path, &text)?,
        None => return Err(NnError::data(path, At::File, "a name that ends in .obj or .off", "another")),
    };
    match mesh.faces.is_empty() {
        true => Err(NnError::data(path, At::File, "at least one face", "none")),
        false => Ok(mesh),
    }
}

#[derive(Debug, Clone, Copy)]
enum Format {
    Obj,
    Off,
}

fn format(path: &Path) -> Option<Format> {
    let end = path.extension()?.to_str()?.to_ascii_lowercase();
    match end.as_str() {
        "obj" => Some(Format::Obj),
        "off" => Some(Format::Off),
        _ => None,
    }
}

/// Whether a file is named as a mesh.
pub(super) fn is_mesh(path: &Path) -> bool {
    format(path).is_some()
}

/// A line of a file.
#[derive(Clone, Copy)]
struct Line<'a> {
    path: &'a Path,
    number: usize,
    text: &'a str,
}

impl<'a> Line<'a> {
    fn fail(&self, expected: impl Into<String>, found: impl Into<String>) -> NnError {
        NnError::data(self.path, At::Line(self.number as u64), expected, found)
    }

    fn words(&self) -> SplitWhitespace<'a> {
        self.text.split_whitespace()
    }

    /// The first three words as a position.
    fn position(&self, words: SplitWhitespace<'a>) -> Result<[f64; 3]> {
        let mut at = [0.0; 3];
        let mut found = 0;
        for (place, word) in at.iter_mut().zip(words) {
            *place = word
                .parse()
                .ok()
                // Layers compute in f32.
                .filter(|x: &f64| (*x as f32).is_finite())
                .ok_or_else(|| self.fail("a finite number", format!("`{word}`")))?;
            found += 1;
        }
        match found {
            3 => Ok(at),
            n => Err(self.fail("the 3 numbers of a position", format!("{n}"))),
        }
    }

    /// The corners of a face of `vertices` vertices, which are numbered from `first`. Errors: no vertex, one twice.
    fn face(&self, face: usize, numbers: [i64; 3], vertices: usize, first: i64) -> Result<[usize; 3]> {
        for n in numbers {
            if n < first || n - first >= vertices as i64 {
                let last = vertices as i64 - 1 + first;
                let expected = format!("the vertices {first} to {last} in face {face}");
                return Err(self.fail(expected, format!("{n}")));
            }
        }
        let [a, b, c] = numbers;
        if a == b || b == c || c == a {
            let expected = format!("three different vertices in face {face}");
            return Err(self.fail(expected, format!("{a}, {b} and {c}")));
        }
        Ok(numbers.map(|n| (n - first) as usize))
    }
}

/// Lines with what stands before a comment, from 1.
fn lines<'a>(path: &'a Path, text: &'a str) -> impl Iterator<Item = Line<'a>> {
    let before = |line: &'a str| line.split('#').next().unwrap_or_default().trim();
    let text = text.trim_start_matches('\u{feff}');
    text.lines().zip(1..).map(move |(line, number)| Line { path, number, text: before(line) })
}

/// A whole number. Errors: none.
fn whole(line: &Line<'_>, word: &str, what: &str) -> Result<i64> {
    word.parse().map_err(|_| line.fail(what, format!("`{word}`")))
}

fn obj(path: &Path, text: &str) -> Result<MeshFile> {
    let mut mesh = MeshFile::default();
    // Vertices may stand behind the faces that have them.
    let mut corners: Vec<(Line<'_>, [i64; 3])> = vec![];
    for line in lines(path, text) {
        let mut words = line.words();
        match words.next() {
            Some("v") => limits::push(&mut mesh.positions, line.position(words)?)?,
            Some("f") => {
                let found = words.clone().count();
                if found != 3 {
                    let expected = format!("the 3 corners of a triangle in face {}", corners.len());
                    return Err(line.fail(expected, format!("{found}")));
                }
                let mut numbers = [0; 3];
                for (place, word) in numbers.iter_mut().zip(words) {
                    let number = word.split('/').next().unwrap_or_default();
                    let n = whole(&line, number, "the number of a vertex")?;
                    // Counted backwards from the last vertex so far. Where that is before the first, the number itself is named.
                    let so_far = mesh.positions.len() as i64;
                    *place = if (-so_far..0).contains(&n) { so_far + 1 + n } else { n };
                }
                limits::push(&mut corners, (line, numbers))?;
            }
            _ => {}
        }
    }
    for (face, (line, numbers)) in corners.into_iter().enumerate() {
        limits::push(&mut mesh.faces, line.face(face, numbers, mesh.positions.len(), 1)?)?;
    }
    Ok(mesh)
}

fn off(path: &Path, text: &str) -> Result<MeshFile> {
    let mut lines = lines(path, text).filter(|line| !line.text.is_empty());
    let ended = |expected: String| NnError::data(path, At::File, expected, "the end of the file");
    let first = lines.next().ok_or_else(|| ended("OFF in the first line".into()))?;
    let Some(rest) = first.text.strip_prefix("OFF") else {
        return Err(first.fail("OFF in the first line", format!("`{}`", first.text)));
    };
    // Some files have the numbers in the same line.
    let counts = match rest.trim() {
        "" => lines.next().ok_or_else(|| ended("the numbers of vertices and faces".into()))?,
        rest => Line { text: rest, ..first },
    };
    let mut words = counts.words();
    let mut count = |what: &str| -> Result<usize> {
        let word = words.next().unwrap_or_default();
        word.parse().map_err(|_| counts.fail(what, format!("`{word}`")))
    };
    let (vertices, faces) = (count("the number of vertices")?, count("the number of faces")?);
    let mut mesh = MeshFile::default();
    for i in 0..vertices {
        let line =
            lines.next().ok_or_else(|| ended(format!("{vertices} vertices, of which {i} are there")))?;
        limits::push(&mut mesh.positions, line.position(line.words())?)?;
    }
    for i in 0..faces {
        let line = lines.next().ok_or_else(|| ended(format!("{faces} faces, of which {i} are there")))?;
        let mut words = line.words();
        let corners = words.next().unwrap_or_default();
        if corners != "3" {
            let expected = format!("the 3 corners of a triangle in face {i}");
            return Err(line.fail(expected, format!("`{corners}`")));
        }
        let mut numbers = [0; 3];
        for place in &mut numbers {
            *place = whole(&line, words.next().unwrap_or_default(), "the number of a vertex")?;
        }
        limits::push(&mut mesh.faces, line.face(i, numbers, vertices, 0)?)?;
    }
    match lines.next() {
        Some(line) => Err(line.fail("the end of the file", format!("`{}`", line.text))),
        None => Ok(mesh),
    }
}
