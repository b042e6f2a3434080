"""All kinds of programs, by name."""

from tests.hunt.kinds import Kind
from tests.hunt.model_kind import ModelKind
from tests.hunt.plan_kind import PlanKind
from tests.hunt.xml_kind import XmlKind

KINDS: dict[str, Kind] = {kind.name: kind for kind in (XmlKind(), PlanKind(), ModelKind())}
