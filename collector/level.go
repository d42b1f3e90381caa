package collector

// levelText are the levels as engines spell them.
var levelText = [...]string{"off", "basic", "lane", "kernel"}

// levelLane is the lowest level that times lanes, levelKernel the one that arms
// steps.
const (
	levelLane   = 2
	levelKernel = 3
)

// LevelText is the spelling of a level in a ring's header or a step's begin;
// "unknown" of a level of a later release.
func LevelText(level uint8) string {
	if int(level) < len(levelText) {
		return levelText[level]
	}
	return "unknown"
}
