//! Items that are made when they are asked for.

use super::{Dataset, Targets};
use crate::core::error::{Result, invalid};
use crate::core::host_tensor::HostTensor;
use crate::core::limits;

/// An item, or several stacked along a new first axis.
#[derive(Debug, Clone, PartialEq)]
pub struct Item {
    /// Features.
    pub x: HostTensor,
    /// Target: a class id (i64, of no axes), token ids, or values.
    pub y: HostTensor,
}

/// A collection of items of one shape, from which a [`Loader`](super::Loader) makes batches. Threads ask for items at the same time.
#[allow(clippy::len_without_is_empty)]
pub trait ItemSource: Send + Sync {
    /// Number of items.
    fn len(&self) -> usize;

    /// Number of classes (largest id + 1), 0 where targets are values.
    fn classes(&self) -> usize {
        0
    }

    /// Item `i`. Errors: [`NnError::Data`](crate::NnError::Data) for an item that is malformed, which a loader can skip; others end the epoch.
    fn item(&self, i: usize) -> Result<Item>;

    /// Several items stacked along a new first axis. To be implemented where that is faster than one by one.
    fn items(&self, rows: &[usize]) -> Result<Item> {
        stack(&rows.iter().map(|&i| self.item(i)).collect::<Result<Vec<_>>>()?)
    }
}

/// Items along a new first axis. Errors: none, or items of unequal shapes or dtypes.
pub(super) fn stack(items: &[Item]) -> Result<Item> {
    let x: Vec<_> = items.iter().map(|i| &i.x).collect();
    let y: Vec<_> = items.iter().map(|i| &i.y).collect();
    Ok(Item { x: HostTensor::stack(&x)?, y: HostTensor::stack(&y)? })
}

/// Two arrays whose first axis counts items, in the dtypes of their file: bytes of images travel to the device as bytes.
#[derive(Debug, Clone, PartialEq)]
pub struct Arrays {
    x: HostTensor,
    y: HostTensor,
    classes: usize,
}

impl Arrays {
    /// Features `[n, ..]` and targets `[n, ..]`. Targets of one axis and an integer dtype are class ids. Errors: unequal first axes, no
    /// items, a negative class id.
    pub fn new(x: HostTensor, y: HostTensor) -> Result<Self> {
        let (n, m) = (x.shape.first().copied(), y.shape.first().copied());
        if n.unwrap_or(0) == 0 || n != m {
            let got = format!("x {:?} and y {:?}", x.shape, y.shape);
            return Err(invalid("Arrays", "y", "as many items as x has, at least 1", got));
        }
        let (mut y, mut classes) = (y, 0);
        if y.shape.len() == 1 && !y.dtype.is_float() {
            y = y.to_dtype(trefoil::DType::I64)?;
            let ids = y.to_vec::<i64>()?;
            if let Some(bad) = ids.iter().find(|&&c| c < 0) {
                return Err(invalid("Arrays", "y", "class ids of at least 0", format!("{bad}")));
            }
            classes = ids.iter().max().map_or(0, |&c| c as usize + 1);
        }
        Ok(Arrays { x, y, classes })
    }

    /// All features.
    pub fn x(&self) -> &HostTensor {
        &self.x
    }

    /// All targets.
    pub fn y(&self) -> &HostTensor {
        &self.y
    }

    /// As a data set of f32 features times `scale`; targets of one axis that are no class ids become values of shape `[1]`.
    pub fn dataset(&self, scale: f32) -> Result<Dataset> {
        let f32s = |t: &HostTensor| t.to_dtype(trefoil::DType::F32)?.to_vec::<f32>();
        let mut features = f32s(&self.x)?;
        features.iter_mut().for_each(|v| *v *= scale);
        let targets = match self.y.shape.get(1..) {
            Some([]) if !self.y.dtype.is_float() => Targets::Classes(self.y.to_vec()?),
            Some(shape) if !shape.is_empty() => {
                Targets::Values { data: f32s(&self.y)?, shape: shape.to_vec() }
            }
            _ => Targets::Values { data: f32s(&self.y)?, shape: vec![1] },
        };
        Dataset::new(features, &self.x.shape[1..], targets)
    }
}

fn only(mut i: Item) -> Item {
    // The axis of the single item.
    i.x.shape.remove(0);
    i.y.shape.remove(0);
    i
}

impl ItemSource for Arrays {
    fn len(&self) -> usize {
        self.x.shape[0]
    }

    fn classes(&self) -> usize {
        self.classes
    }

    fn item(&self, i: usize) -> Result<Item> {
        Ok(only(self.items(&[i])?))
    }

    fn items(&self, rows: &[usize]) -> Result<Item> {
        Ok(Item { x: self.x.rows(rows)?, y: self.y.rows(rows)? })
    }
}

impl ItemSource for Dataset {
    fn len(&self) -> usize {
        Dataset::len(self)
    }

    fn classes(&self) -> usize {
        Dataset::classes(self)
    }

    fn item(&self, i: usize) -> Result<Item> {
        Ok(only(self.items(&[i])?))
    }

    fn items(&self, rows: &[usize]) -> Result<Item> {
        if let Some(bad) = rows.iter().find(|&&r| r >= self.len()) {
            return Err(invalid("items", "rows", format!("rows below {}", self.len()), format!("{bad}")));
        }
        fn pick<T: trefoil::Element>(from: &[T], rows: &[usize], item: &[usize]) -> Result<HostTensor> {
            let width = item.iter().product::<usize>();
            let mut out = vec![];
            limits::reserve(&mut out, rows.len().saturating_mul(width))?;
            for &r in rows {
                out.extend_from_slice(&from[r * width..(r + 1) * width]);
            }
            HostTensor::from_slice(&out, &[&[rows.len()], item].concat())
        }
        let y = match self.targets() {
            Targets::Classes(ids) => pick(ids, rows, &[])?,
            Targets::Values { data, shape } => pick(data, rows, shape)?,
        };
        Ok(Item { x: pick(self.features(), rows, self.item_shape())?, y })
    }
}
