"""The experiments of the paper and the stages of the study, as commands of mhsh."""
