"""Element by element, of one tensor: functions of mathematics."""
