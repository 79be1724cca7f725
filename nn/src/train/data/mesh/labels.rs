//! Files of meshes, and their classes.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use super::read::is_mesh;
use crate::core::error::{At, NnError, Result};
use crate::core::limits;
use crate::train::data::csv::clean;
use crate::train::data::entries;

/// Classes of meshes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MeshLabels {
    /// Meshes that have a class, by their numbers.
    pub meshes: Vec<i64>,
    /// Their classes.
    pub classes: Vec<i64>,
    /// Names of the classes, by id, where they have names.
    pub names: Option<Vec<String>>,
}

/// The meshes among files and folders: files as they are, of a folder the files that are named `.obj` or `.off`, then those of the folders in it,
/// all in alphabetical order. Errors: [`NnError::Io`]; [`NnError::Data`] for a folder without meshes.
pub fn mesh_files(paths: &[PathBuf]) -> Result<Vec<PathBuf>> {
    let mut all = vec![];
    for path in paths {
        if !path.is_dir() {
            limits::push(&mut all, path.clone())?;
            continue;
        }
        let before = all.len();
        let own = entries(path)?;
        let inner = own.iter().filter(|p| p.is_dir()).map(|p| entries(p)).collect::<Result<Vec<_>>>()?;
        for file in own.iter().chain(inner.iter().flatten()).filter(|p| p.is_file() && is_mesh(p)) {
            limits::push(&mut all, file.clone())?;
        }
        if all.len() == before {
            return Err(NnError::data(path, At::File, "files that end in .obj or .off", "none"));
        }
    }
    Ok(all)
}

impl MeshLabels {
    /// The class of every mesh is the folder in which its file lies; ids in the alphabetical order of the folders. Errors: [`NnError::Data`] for a
    /// file that lies in no named folder.
    pub fn of_folders(files: &[PathBuf]) -> Result<Self> {
        let folder = |file: &PathBuf| {
            let name = file.parent().and_then(Path::file_name);
            name.map(|n| n.to_string_lossy().into_owned()).ok_or_else(|| {
                NnError::data(file, At::File, "a folder with the name of its class, or `labels`", "none")
            })
        };
        let of_each = files.iter().map(folder).collect::<Result<Vec<_>>>()?;
        Ok(MeshLabels::named((0..files.len() as i64).collect(), &of_each, different(&of_each)))
    }

    /// The classes of a CSV file: in each line the end of the path of a mesh, and its class. Classes that are all whole numbers are ids; others are
    /// names, with ids in alphabetical order, or in that of `names` where they are known. Meshes without a line have no class. Without `header`
    /// the first line names the columns if it begins with no mesh's name. Errors: [`NnError::Io`]; [`NnError::Table`] with row and column of what
    /// is no mesh, one that stands twice or whose name several have, a class that is not known.
    pub fn read_csv(
        path: &Path,
        files: &[PathBuf],
        header: Option<bool>,
        separator: char,
        names: Option<&[String]>,
    ) -> Result<Self> {
        let text = limits::read_text(path, limits::TEXT_BYTES)?;
        let fail = |row, column, what| NnError::Table { path: path.into(), row, column, what };
        let (mut meshes, mut classes, mut seen) = (vec![], vec![], BTreeSet::new());
        for (line, row) in text.trim_start_matches('\u{feff}').lines().zip(1..) {
            let cells: Vec<&str> = line.split(separator).map(clean).collect();
            let named = row == 1 && header.unwrap_or_else(|| !is_mesh(Path::new(cells[0])));
            if line.trim().is_empty() || named {
                continue;
            }
            let &[file, class] = &cells[..] else {
                let what = format!("expected 2 cells, found {}", cells.len());
                return Err(fail(row, cells.len().min(2) + 1, what));
            };
            let mut found = files
                .iter()
                .enumerate()
                .filter(|(_, f)| !file.is_empty() && f.ends_with(file))
                .map(|(i, _)| i);
            let (Some(mesh), None) = (found.next(), found.next()) else {
                let what = format!("expected the end of the path of one mesh, found `{file}`");
                return Err(fail(row, 1, what));
            };
            if !seen.insert(mesh) {
                return Err(fail(row, 1, format!("expected each mesh once, found `{file}` again")));
            }
            let known = names.is_none_or(|names| names.iter().any(|n| n == class));
            if class.is_empty() || !known {
                let all = names.map_or(String::new(), |names| format!(", one of {}", names.join(", ")));
                return Err(fail(row, 2, format!("expected a class{all}, found `{class}`")));
            }
            limits::push(&mut meshes, mesh as i64)?;
            limits::push(&mut classes, class.to_string())?;
        }
        if meshes.is_empty() {
            return Err(fail(1, 1, "the file has no items".into()));
        }
        let id = |class: &String| class.parse::<u32>().ok().map(i64::from);
        match (names, classes.iter().map(id).collect()) {
            (Some(names), _) => Ok(MeshLabels::named(meshes, &classes, names.to_vec())),
            (None, Some(classes)) => Ok(MeshLabels { meshes, classes, names: None }),
            (None, None) => Ok(MeshLabels::named(meshes, &classes, different(&classes))),
        }
    }

    fn named(meshes: Vec<i64>, classes: &[String], names: Vec<String>) -> Self {
        let id = |class: &String| names.iter().position(|n| n == class).map_or(0, |at| at as i64);
        MeshLabels { meshes, classes: classes.iter().map(id).collect(), names: Some(names) }
    }
}

/// The different names, in alphabetical order.
fn different(names: &[String]) -> Vec<String> {
    names.iter().collect::<BTreeSet<_>>().into_iter().cloned().collect()
}
