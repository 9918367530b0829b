"""Show a layer of tiles in QGIS, with land below it, and save the picture.

    QT_QPA_PLATFORM=offscreen /usr/bin/python3 in_qgis.py TILEJSON PICTURE W S E N PIXELS [LAND]

The extent is in metres of web mercator, PIXELS is how wide the picture is, LAND a file of GeoJSON.
QGIS belongs to Debian's Python, so this file imports nothing of ours.
"""

import json
import sys
import urllib.parse
import urllib.request

from PyQt5.QtCore import QSize
from PyQt5.QtGui import QColor
from qgis.core import (
    QgsApplication,
    QgsCoordinateReferenceSystem,
    QgsFillSymbol,
    QgsMapRendererSequentialJob,
    QgsMapSettings,
    QgsRasterLayer,
    QgsRectangle,
    QgsVectorLayer,
)


def tiles_of(address):
    """The layer that a TileJSON describes."""
    with urllib.request.urlopen(address) as answer:
        told = json.load(answer)
    [url] = told["tiles"]
    source = {"type": "xyz", "url": url, "zmin": told["minzoom"], "zmax": told["maxzoom"]}
    return QgsRasterLayer(urllib.parse.urlencode(source), told["name"], "wms")


def land_of(path):
    """Land, without borders."""
    layer = QgsVectorLayer(path, "land", "ogr")
    layer.setSubsetString("kind = 'land'")
    symbol = QgsFillSymbol.createSimple({"color": "#e8e4da", "outline_color": "#b9b3a4"})
    layer.renderer().setSymbol(symbol)
    return layer


def draw(address, picture, west, south, east, north, pixels, land=None):
    """Have QGIS draw the layers, and save what it drew."""
    layers = [tiles_of(address), *([land_of(land)] if land else [])]
    assert all(layer.isValid() for layer in layers), [one.error().summary() for one in layers]
    extent = QgsRectangle(*map(float, (west, south, east, north)))
    settings = QgsMapSettings()
    settings.setLayers(layers)
    settings.setDestinationCrs(QgsCoordinateReferenceSystem("EPSG:3857"))
    settings.setExtent(extent)
    height = round(int(pixels) * extent.height() / extent.width())
    settings.setOutputSize(QSize(int(pixels), height))
    settings.setBackgroundColor(QColor("#ffffff" if land else "transparent"))
    job = QgsMapRendererSequentialJob(settings)
    job.start()
    job.waitForFinished()
    assert not job.errors(), [error.message for error in job.errors()]
    assert job.renderedImage().save(picture)


application = QgsApplication([], False)
application.initQgis()
draw(*sys.argv[1:])
application.exitQgis()
