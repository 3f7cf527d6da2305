"""Chapter SCH: schedules as executed and as tables."""
