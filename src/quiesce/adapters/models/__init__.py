"""Models behind `ports.models.Model`. Each module imports its optional package only when it is used."""
