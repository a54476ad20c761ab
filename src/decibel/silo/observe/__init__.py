"""How a site and its federation are doing: status, reports, metrics and pages."""
