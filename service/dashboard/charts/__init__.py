"""Charts as data: SVG attributes and ECharts options."""
