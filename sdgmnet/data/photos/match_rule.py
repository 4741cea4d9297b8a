"""When keypoints of two photos are the same, when they are different, and when nothing is said.

The rule of Brown, Hua and Winder (2011): a keypoint carried to another photo matches one detected there when place, scale and
orientation agree within a near border, does not when any of them is beyond a far border, and in between nothing is said.

Places are compared in pixels of the undistorted image, and in units of the keypoint's own sigma too, of which a patch has 12:
matching needs both (5 px of a keypoint of 1.6 px would be a quarter of its patch), non-matching needs both as well (10 px of a
keypoint of 20 px is hardly a change of its patch). This only makes the published rule stricter on either side.
"""

from dataclasses import dataclass

import numpy as np

MATCHING, UNDECIDED, DIFFERENT, UNKNOWN = 2, 1, 0, -1


@dataclass(frozen=True)
class Rule:
    """Borders of matching and non-matching, and which depths are believed."""

    near_pixels: float = 5.0
    near_sigmas: float = 1.5
    near_octaves: float = 0.25
    near_radians: float = np.pi / 8
    far_pixels: float = 10.0
    far_sigmas: float = 3.0
    far_octaves: float = 0.5
    far_radians: float = np.pi / 4
    depth_tolerance: float = 0.01
    """How far the other photo's depth may be from that of the carried point, as a share."""
    return_pixels: float = 1.5
    """How far a place carried over by one depth map and back by the other may come to lie from where it was."""
    steepest: float = 70.0
    """Degrees between the line of sight and the surface's normal, in either photo, at most."""
    least_support: float = 0.7
    """Share of a patch's surface, where its depth is known, that the other photo must show for a carried patch."""


def differences(
    one_xy: np.ndarray,
    one_sigma: np.ndarray,
    one_angle: np.ndarray,
    xy: np.ndarray,
    sigma: np.ndarray,
    angle: np.ndarray,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Pixels, octaves and radians between rows."""
    turn = np.abs((one_angle - angle + np.pi) % (2 * np.pi) - np.pi)
    return np.linalg.norm(one_xy - xy, axis=1), np.abs(np.log2(one_sigma / sigma)), turn


def judge(
    pixels: np.ndarray, octaves: np.ndarray, radians: np.ndarray, sigma: np.ndarray, rule: Rule
) -> tuple[np.ndarray, np.ndarray]:
    """Verdict (N,) of MATCHING, UNDECIDED or DIFFERENT, and misfit (N,), for keypoints of about `sigma`."""
    near = np.minimum(rule.near_pixels, rule.near_sigmas * sigma)
    far = np.maximum(rule.far_pixels, rule.far_sigmas * sigma)
    matching = (pixels <= near) & (octaves <= rule.near_octaves) & (radians <= rule.near_radians)
    different = (pixels > far) | (octaves > rule.far_octaves) | (radians > rule.far_radians)
    misfit = np.sqrt(
        ((pixels / near) ** 2 + (octaves / rule.near_octaves) ** 2 + (radians / rule.near_radians) ** 2) / 3
    )
    return np.where(matching, MATCHING, np.where(different, DIFFERENT, UNDECIDED)), misfit
