# SPDX-License-Identifier: BSD-3-Clause
"""OpenVINO's IR (.xml with .bin), as NNCF and OpenVINO's own converters compress weights in it."""

from blockscale.export.checkpoints.openvino import reading

reader, recognize = reading.OpenVINO, reading.recognize
