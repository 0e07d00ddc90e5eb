"""What the errors that a producer meets say of the batches that met them."""

from __future__ import annotations

from typing import Final

from client.errors import (
    DuplicateSequenceNumberError,
    InvalidProducerEpochError,
    InvalidRecordError,
    MessageTooLargeError,
    OutOfOrderSequenceNumberError,
    RecordListTooLargeError,
    RequestTimedOutError,
    UnknownProducerIdError,
)
from protocol.errors import ErrorCode

TOO_LARGE: Final = (MessageTooLargeError, RecordListTooLargeError)
OF_ONE_BATCH: Final = (*TOO_LARGE, InvalidRecordError, DuplicateSequenceNumberError)
"""What one batch of several may be the reason of."""
OUT_OF_ROW: Final = (OutOfOrderSequenceNumberError, UnknownProducerIdError, InvalidProducerEpochError)
"""What the daemon says of a number that does not come next."""
UNCERTAIN: Final = (
    ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.REQUEST_TIMED_OUT,
    ErrorCode.NETWORK_EXCEPTION,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    ErrorCode.KAFKA_STORAGE_ERROR,
)
"""Answers that leave open whether the records are in the log; any other refusal says that they are not."""
WAITED: Final = RequestTimedOutError("no request could take them in time")
NO_ID_YET: Final = RequestTimedOutError("the daemon has not answered yet which producer id this producer gets")
