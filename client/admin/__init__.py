"""The admin: topics, the cluster, and groups as an operator sees them."""

from client.admin.admin import Admin
from client.admin.offset_reset import OffsetResetPlan, PartitionReset, ResetTarget

__all__ = ["Admin", "OffsetResetPlan", "PartitionReset", "ResetTarget"]
