"""Commands on runs: made, resumed, used, and exchanged with other libraries."""
