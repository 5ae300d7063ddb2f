"""The tables. Results are keyed by device model, problem and environment; older ones are kept, not overwritten."""

from tilewright.service.store.models.access import ApiKey, AuditEntry, BrowserSession, Project
from tilewright.service.store.models.declarative import Base, uuid7
from tilewright.service.store.models.demand import AskedShelf, Demand, Predictor
from tilewright.service.store.models.devices import Device, DeviceModel, DeviceState, Environment
from tilewright.service.store.models.helion import HelionEntry
from tilewright.service.store.models.jobs import ChoreRound, IdempotencyKey, JobState, Study, TuningJob
from tilewright.service.store.models.problems import Kernel, KernelVariant, Problem
from tilewright.service.store.models.remarks import Claim, ClaimState, SavedView, StudyNote
from tilewright.service.store.models.results import BestConfiguration, FamilyTable, Trial, TrialRetry
from tilewright.service.store.models.schedules import (
    Comparison,
    FireOutcome,
    Overlap,
    Schedule,
    ScheduledProblem,
    ScheduleFire,
    ScheduleTarget,
)
from tilewright.service.store.models.webhooks import DeliveryState, Webhook, WebhookDelivery

__all__ = [
    "ApiKey",
    "AskedShelf",
    "AuditEntry",
    "Base",
    "BestConfiguration",
    "BrowserSession",
    "ChoreRound",
    "Claim",
    "ClaimState",
    "Comparison",
    "DeliveryState",
    "Demand",
    "Device",
    "DeviceModel",
    "DeviceState",
    "Environment",
    "FamilyTable",
    "FireOutcome",
    "HelionEntry",
    "IdempotencyKey",
    "JobState",
    "Kernel",
    "KernelVariant",
    "Overlap",
    "Predictor",
    "Problem",
    "Project",
    "SavedView",
    "Schedule",
    "ScheduleFire",
    "ScheduleTarget",
    "ScheduledProblem",
    "Study",
    "StudyNote",
    "Trial",
    "TrialRetry",
    "TuningJob",
    "Webhook",
    "WebhookDelivery",
    "uuid7",
]
