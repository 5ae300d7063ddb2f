"""What axe-core finds on a page."""

from pathlib import Path

AXE = Path(__file__).parent / "vendor" / "axe.min.js"
RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"]


def serious(tab) -> list[str]:
    """What axe-core calls serious or critical, in short. The tool itself is let past the content policy."""
    if not tab.evaluate("'axe' in window"):
        tab.evaluate(AXE.read_text(encoding="utf-8"))
    found = tab.evaluate("rules => axe.run({ runOnly: rules, resultTypes: ['violations'] })", RULES)
    bad = [v for v in found["violations"] if v["impact"] in {"serious", "critical"}]
    return [f"{v['id']}: {v['nodes'][0]['html'][:160]}" for v in bad]
