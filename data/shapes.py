"""Writes the meshes of data/shapes: `python3 data/shapes.py`. Spheres, cubes and tori of two resolutions each, turned, stretched along three axes,
with noise on all coordinates; one of four lacks a face, one of two is an OBJ file, the others are OFF."""

import math
import pathlib
import random

COUNT, NOISE = 16, 0.05


def sphere(fine):
    """An octahedron or icosahedron, every face divided into four."""
    if fine:
        g = (1 + 5**0.5) / 2
        points = [(0, a, b) for a in (-1, 1) for b in (-g, g)]
        points = points + [(a, b, 0) for _, a, b in points] + [(b, 0, a) for _, a, b in points]
    else:
        points = [p for a in (-1, 1) for p in ((a, 0, 0), (0, a, 0), (0, 0, a))]
    near = min(math.dist(points[0], p) for p in points[1:]) * 1.01
    n = range(len(points))
    beside = [{j for j in n if j != i and math.dist(points[i], points[j]) < near} for i in n]
    faces = [(i, j, k) for i in n for j in beside[i] for k in beside[i] & beside[j] if i < j < k]
    points, middles, divided = [unit(p) for p in points], {}, []

    def middle(i, j):
        key = (min(i, j), max(i, j))
        if key not in middles:
            middles[key] = len(points)
            points.append(unit([a + b for a, b in zip(points[i], points[j])]))
        return middles[key]

    for i, j, k in (outward(points, f) for f in faces):
        a, b, c = middle(i, j), middle(j, k), middle(k, i)
        divided += [(i, a, c), (a, j, b), (c, b, k), (a, b, c)]
    return points, divided


def cube(fine):
    """Six sides of squares, each divided into two triangles."""
    n, points, faces = 3 if fine else 2, {}, []

    def vertex(axis, side, u, v):
        at = [2 * u / n - 1, 2 * v / n - 1]
        at.insert(axis, side)
        return points.setdefault(tuple(round(x, 6) for x in at), len(points))

    for axis, side in ((axis, side) for axis in range(3) for side in (-1, 1)):
        for u, v in ((u, v) for u in range(n) for v in range(n)):
            a, b, c, d = (vertex(axis, side, u + i, v + j) for i, j in ((0, 0), (1, 0), (1, 1), (0, 1)))
            faces += [(a, b, c), (a, c, d)]
    points = list(points)
    return points, [outward(points, f) for f in faces]


def torus(fine):
    m, n = (8, 5) if fine else (6, 4)
    points, faces = [], []
    for i, j in ((i, j) for i in range(m) for j in range(n)):
        a, b = 2 * math.pi * i / m, 2 * math.pi * j / n
        radius = 0.75 + 0.35 * math.cos(b)
        points.append((radius * math.cos(a), radius * math.sin(a), 0.35 * math.sin(b)))
        p, q, r, s = (((i + u) % m * n + (j + v) % n) for u, v in ((0, 0), (1, 0), (1, 1), (0, 1)))
        faces += [(p, q, r), (p, r, s)]
    return points, faces


def unit(p):
    length = math.hypot(*p)
    return tuple(x / length for x in p)


def outward(points, face):
    """The corners counterclockwise, seen from outside of a body around 0."""
    p, q, r = (points[i] for i in face)
    u, v = [b - a for a, b in zip(p, q)], [b - a for a, b in zip(p, r)]
    normal = [u[1] * v[2] - u[2] * v[1], u[2] * v[0] - u[0] * v[2], u[0] * v[1] - u[1] * v[0]]
    return face if sum(a * b for a, b in zip(normal, p)) > 0 else (face[0], face[2], face[1])


def moved(rng, points):
    stretch = [rng.uniform(0.75, 1.3) for _ in range(3)]
    points = [[a * s for a, s in zip(p, stretch)] for p in points]
    for i, j in ((0, 1), (1, 2), (2, 0)):
        turn = rng.uniform(0, 2 * math.pi)
        for p in points:
            a, b = p[i], p[j]
            p[i], p[j] = math.cos(turn) * a - math.sin(turn) * b, math.sin(turn) * a + math.cos(turn) * b
    return [[a + rng.gauss(0, NOISE) for a in p] for p in points]


def main():
    rng, root = random.Random(1), pathlib.Path(__file__).parent / "shapes"
    for name, make in (("cube", cube), ("sphere", sphere), ("torus", torus)):
        (root / name).mkdir(parents=True, exist_ok=True)
        for i in range(COUNT):
            points, faces = make(i % 2 == 1)
            points = moved(rng, points)
            if i % 4 == 3:
                faces.pop(rng.randrange(len(faces)))
            rows = [" ".join(f"{a:.3f}" for a in p) for p in points]
            if i // 2 % 2:
                lines = [f"v {row}" for row in rows] + ["f " + " ".join(str(v + 1) for v in f) for f in faces]
                path = root / name / f"{i:02}.obj"
            else:
                counts = f"{len(points)} {len(faces)} 0"
                lines = ["OFF", counts, *rows, *("3 " + " ".join(str(v) for v in f) for f in faces)]
                path = root / name / f"{i:02}.off"
            path.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
