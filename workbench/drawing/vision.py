"""How colours are seen: by the colour-blind and in grey print, and how far apart they are then."""

import matplotlib as mpl
import numpy as np

from ..checks import shown

# Linear RGB as protanopes, deuteranopes and tritanopes see it: Machado, Oliveira and Fernandes,
# "A Physiologically-based Model for Simulation of Color Vision Deficiency", IEEE TVCG 15(6), 2009,
# severity 1.0.
MACHADO = {
    "protan": [
        [0.152286, 1.052583, -0.204868],
        [0.114503, 0.786281, 0.099216],
        [-0.003882, -0.048116, 1.051998],
    ],
    "deutan": [
        [0.367322, 0.860646, -0.227968],
        [0.280085, 0.672501, 0.047413],
        [-0.011820, 0.042940, 0.968881],
    ],
    "tritan": [
        [1.255528, -0.076749, -0.178779],
        [-0.078411, 0.930809, 0.147602],
        [0.004733, 0.691367, 0.303900],
    ],
}
XYZ = np.array(  # of linear sRGB, D65: IEC 61966-2-1
    [[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]
)
VISIONS = {"normal": np.eye(3), "grey": np.tile(XYZ[1], (3, 1))} | {
    name: np.array(matrix) for name, matrix in MACHADO.items()
}
# Apart at a glance in small marks; 2.3 is what can just be told side by side (Mahy et al. 1994).
APART = {"normal": 15.0, "protan": 15.0, "deutan": 15.0, "tritan": 15.0, "grey": 10.0}


def seen(colour, vision: str) -> tuple[float, float, float]:
    """Return the RGB in which a colour appears to protan, deutan or tritan eyes, or in grey print.

    A colour with an alpha lies on white paper. ValueError for another vision.
    """
    if vision not in VISIONS:
        raise ValueError(f"vision: expected one of {', '.join(VISIONS)}, got {shown(vision)}")
    linear = np.clip(VISIONS[vision] @ _linear(colour), 0, 1)
    rgb = np.where(linear <= 0.0031308, 12.92 * linear, 1.055 * linear ** (1 / 2.4) - 0.055)
    return tuple(np.clip(rgb, 0, 1).tolist())


def difference(one, other, vision: str = "normal") -> float:
    """Return how far apart two colours appear: Delta E of CIE 1976, of which grey keeps L* only."""
    return float(np.linalg.norm(_lab(seen(one, vision)) - _lab(seen(other, vision))))


def alike(one, other) -> dict[str, float]:
    """Return by vision the difference of two colours where it is below APART; empty when told."""
    found = {vision: difference(one, other, vision) for vision in APART}
    return {vision: apart for vision, apart in found.items() if apart < APART[vision]}


def _linear(colour) -> np.ndarray:
    """Return linear RGB of a colour on white paper (IEC 61966-2-1)."""
    *rgb, alpha = mpl.colors.to_rgba(colour)
    rgb = 1 - alpha * (1 - np.array(rgb))
    return np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)


def _lab(colour) -> np.ndarray:
    """Return L*, a* and b* of a colour (CIE 15, D65)."""
    relative = XYZ @ _linear(colour) / XYZ.sum(axis=1)
    low = relative / (3 * (6 / 29) ** 2) + 4 / 29
    x, y, z = np.where(relative > (6 / 29) ** 3, np.cbrt(relative), low)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])
