"""The mathematics: functions and small classes on tensors that know no model and no optimizer."""
